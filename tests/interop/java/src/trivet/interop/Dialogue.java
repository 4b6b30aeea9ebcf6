package trivet.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What needs the broker to speak to a producer: transactions and request-reply. */
final class Dialogue {
    private static final int SEND_TIMEOUT_MS = 20_000;

    private Dialogue() {}

    /** Sends --count half messages with --outcome and answers checks with --check-outcome, until standard input ends. */
    static void transaction(Options options) throws Exception {
        LocalTransactionState outcome = state(options.text("outcome", "commit"));
        LocalTransactionState checkOutcome = state(options.text("check-outcome", "commit"));
        TransactionMQProducer producer = new TransactionMQProducer(options.required("group"), options.credentials());
        options.connected(producer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return outcome;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Report.message("checked", message);
                return checkOutcome;
            }
        });
        producer.start();
        Report.emit("started");
        int count = options.number("count", 1);
        for (int index = 0; index < count; index++) {
            Message message = new Message(options.required("topic"), bytes(options.text("prefix", "t-") + index));
            message.setKeys("key-" + index);
            try {
                SendResult result = Again.whileThereIsNoRoute(
                    index, SEND_TIMEOUT_MS, () -> producer.sendMessageInTransaction(message, null));
                Report.emit("sent", "index", index, "status", result.getSendStatus().name().replace("SEND_OK", "OK"),
                    "offset", result.getQueueOffset(), "msg_id", result.getMsgId());
            } catch (Exception error) {
                Report.emit("failed", "index", index, "error", Report.describe(error));
            }
        }
        Report.emit("done");
        Report.waitForEndOfInput();
        producer.shutdown();
        Report.emit("stopped");
    }

    /**
     * Sends --count requests and reports each reply. With --callback by the only way to ask that works in 5.3.1: its
     * others take the storing of the request for the reply's coming.
     */
    static void request(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.required("group"), options.credentials());
        options.connected(producer);
        producer.start();
        Report.emit("started");
        int count = options.number("count", 1);
        for (int index = 0; index < count; index++) {
            Message message = new Message(options.required("topic"), bytes("question-" + index));
            try {
                int timeToLive = options.number("ttl-ms", 15000);
                Message reply = options.flag("callback")
                    ? requestByCallback(producer, message, timeToLive) : producer.request(message, timeToLive);
                Report.emit("reply", "index", index, "body", Report.body(reply));
            } catch (Exception error) {
                Report.emit("failed", "index", index, "error", Report.describe(error));
            }
        }
        Report.emit("done");
        producer.shutdown();
        Report.emit("stopped");
    }

    private static Message requestByCallback(DefaultMQProducer producer, Message message, int timeToLive) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        producer.request(message, (queues, asked, argument) -> queues.get(0), null, new RequestCallback() {
            @Override
            public void onSuccess(Message answer) {
                reply.complete(answer);
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        }, timeToLive);
        return reply.get();
    }

    /** Answers each request with "answer to " + its body, until standard input ends. */
    static void reply(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.required("group") + "-replies", options.credentials());
        options.connected(producer);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.required("group"));
        options.connected(consumer);
        consumer.setPullTimeDelayMillsWhenException(500);
        consumer.subscribe(options.required("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message, bytes("answer to " + Report.body(message)));
                    SendResult result = producer.send(reply, SEND_TIMEOUT_MS);
                    Report.emit("answered", "status", result.getSendStatus().name(), "body", Report.body(message));
                } catch (Exception error) {
                    Report.emit("failed", "index", -1, "error", Report.describe(error));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Report.emit("started");
        Report.waitForEndOfInput();
        consumer.shutdown();
        producer.shutdown();
        Report.emit("stopped");
    }

    private static LocalTransactionState state(String name) {
        switch (name) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            default:
                throw new IllegalArgumentException("transaction outcome " + name);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
