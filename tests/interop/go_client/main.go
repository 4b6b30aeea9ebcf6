// The Go client as a subject: options and events are those of ../cpp_client/common.py.
//
// Subcommands: send (modes sync, async, oneway, batch, transaction) and push.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	flags      = flag.NewFlagSet("interop", flag.ExitOnError)
	nameServer = flags.String("namesrv", "", "name servers, with ; between them")
	topic      = flags.String("topic", "", "")
	group      = flags.String("group", "", "")
	accessKey  = flags.String("access-key", "", "of an account, whose requests are then signed")
	secretKey  = flags.String("secret-key", "", "")
	mode       = flags.String("mode", "sync", "how to send")
	count      = flags.Int("count", 1, "messages to send; 0: until the end of standard input")
	batch      = flags.Int("batch", 10, "messages in each batch")
	expression = flags.String("expression", "", "what a consumer wants; empty: everything")
	sql        = flags.Bool("sql", false, "whether the expression is SQL92")
	output     sync.Mutex
)

func emit(event string, fields map[string]any) {
	if fields == nil {
		fields = map[string]any{}
	}
	fields["event"], fields["at_ms"] = event, time.Now().UnixMilli()
	line, _ := json.Marshal(fields)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	check(flags.Parse(os.Args[2:]))
	rlog.SetLogLevel("warn")
	ended := make(chan struct{})
	go func() { // the end of standard input ends the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	servers := primitive.NewPassthroughResolver(strings.Split(*nameServer, ";"))
	account := primitive.Credentials{AccessKey: *accessKey, SecretKey: *secretKey}
	if os.Args[1] == "push" {
		push(servers, account, ended)
	} else {
		send(servers, account, ended)
	}
	emit("stopped", nil)
}

func push(servers primitive.NsResolver, account primitive.Credentials, ended chan struct{}) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(servers), consumer.WithCredentials(account), consumer.WithGroupName(*group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: *expression}
	if *sql {
		selector.Type = consumer.SQL92
	}
	check(client.Subscribe(*topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				emit("message", map[string]any{"body": string(m.Body), "topic": m.Topic, "queue": m.Queue.QueueId,
					"offset": m.QueueOffset, "tags": m.GetTags(), "reconsume": m.ReconsumeTimes})
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(client.Start())
	emit("started", nil)
	<-ended
	check(client.Shutdown())
}

func send(servers primitive.NsResolver, account primitive.Credentials, ended chan struct{}) {
	options := []producer.Option{producer.WithNsResolver(servers), producer.WithCredentials(account),
		producer.WithGroupName(*group), producer.WithRetry(2)}
	var client rocketmq.Producer
	var transactional rocketmq.TransactionProducer
	var err error
	if *mode == "transaction" { // only of the first client of a process questions reach it
		transactional, err = rocketmq.NewTransactionProducer(&decisions{}, options...)
		check(err)
		check(transactional.Start())
	} else {
		client, err = rocketmq.NewProducer(options...)
		check(err)
		check(client.Start())
	}
	ctx := context.Background()
	var pending sync.WaitGroup
	report := func(index int, sent *primitive.SendResult, err error) {
		if err != nil {
			emit("failed", map[string]any{"index": index, "error": err.Error()})
			time.Sleep(100 * time.Millisecond) // refused connections fail at once
			return
		}
		emit("sent", map[string]any{"index": index, "status": map[bool]string{true: "OK"}[sent.Status == primitive.SendOK],
			"queue": sent.MessageQueue.QueueId, "offset": sent.QueueOffset, "msg_id": sent.MsgID})
	}
	step := 1
	if *mode == "batch" {
		step = *batch
	}
	for index := 0; (*count == 0 || index < *count) && !over(ended, *count); index += step {
		messages := make([]*primitive.Message, step)
		for i := range messages {
			messages[i] = primitive.NewMessage(*topic, []byte(fmt.Sprint("m-", index+i))).
				WithTag([]string{"even", "odd"}[(index+i)%2])
			messages[i].WithProperty("index", fmt.Sprint(index+i))
		}
		switch *mode {
		case "async":
			pending.Add(1)
			check(client.SendAsync(ctx, func(_ context.Context, sent *primitive.SendResult, err error) {
				report(index, sent, err)
				pending.Done()
			}, messages...))
		case "oneway":
			check(client.SendOneWay(ctx, messages...))
		case "transaction":
			sent, err := transactional.SendMessageInTransaction(ctx, messages[0])
			if err != nil {
				report(index, nil, err)
			} else {
				report(index, sent.SendResult, nil)
			}
		default:
			sent, err := client.SendSync(ctx, messages...)
			report(index, sent, err)
		}
	}
	pending.Wait()
	emit("done", nil)
	if *mode == "oneway" || *mode == "transaction" {
		<-ended // whoever counts the messages says when they have left, or were asked about
	}
	if *mode == "transaction" {
		check(transactional.Shutdown())
	} else {
		check(client.Shutdown())
	}
}

// over says whether an endless sender was told to end.
func over(ended chan struct{}, count int) bool {
	select {
	case <-ended:
		return count == 0
	default:
		return false
	}
}

// decisions commits a third of the messages at once, rolls a third back, and commits the rest when it is asked.
type decisions struct{}

func (*decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	var index int
	_, _ = fmt.Sscan(m.GetProperty("index"), &index)
	return []primitive.LocalTransactionState{
		primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnknowState}[index%3]
}

func (*decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	emit("asked", map[string]any{"body": string(m.Body)})
	return primitive.CommitMessageState
}
