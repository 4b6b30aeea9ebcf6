package trivet.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The three consumers of the Java client. */
final class Receive {
    private Receive() {}

    /** DefaultMQPushConsumer until standard input ends. */
    static void push(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.required("group"), options.credentials(),
            new AllocateMessageQueueAveragely(), options.flag("trace"), null);
        options.connected(consumer);
        consumer.setConsumeThreadMin(options.number("threads", 4));
        consumer.setConsumeThreadMax(options.number("threads", 4));
        consumer.setVipChannelEnabled(options.flag("vip"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            options.text("from", "CONSUME_FROM_LAST_OFFSET")));
        if (options.flag("timestamp")) {
            consumer.setConsumeTimestamp(options.required("timestamp"));
        }
        if (options.flag("instance")) {
            consumer.setInstanceName(options.required("instance"));
        }
        if (options.flag("max-reconsume")) {
            consumer.setMaxReconsumeTimes(options.number("max-reconsume", 16));
        }
        if (options.flag("broadcast")) {
            Models.broadcast(consumer);
        }
        String expression = options.text("expression", "*");
        MessageSelector selector = options.flag("sql")
            ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
        consumer.subscribe(options.required("topic"), selector);
        int failTimes = options.number("fail-times", 0);
        if (options.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (message.getReconsumeTimes() < failTimes) {
                        Report.message("refused", message);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    Report.message("begin", message);
                    pause(options.number("hold-ms", 0));
                    Report.message("message", message);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (message.getReconsumeTimes() < failTimes) {
                        Report.message("refused", message);
                        context.setDelayLevelWhenNextConsume(options.number("retry-level", 1));
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    Report.message("message", message);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Report.emit("started");
        obey(consumer);
        consumer.shutdown();
        Report.emit("stopped");
    }

    /** Does what the lines of standard input say, until it ends: suspend, resume, subscribe TOPIC TAGS, unsubscribe TOPIC. */
    private static void obey(DefaultMQPushConsumer consumer) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "suspend":
                    consumer.suspend();
                    break;
                case "resume":
                    consumer.resume();
                    break;
                case "subscribe":
                    consumer.subscribe(words[1], words[2]);
                    break;
                case "unsubscribe":
                    consumer.unsubscribe(words[1]);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            Report.emit("obeyed", "line", line);
        }
    }

    /** DefaultMQPullConsumer: every queue of the topic from offset 0 to its end. */
    @SuppressWarnings("deprecation")
    static void pull(Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.required("group"), options.credentials());
        options.connected(consumer);
        consumer.start();
        Report.emit("started");
        String topic = options.required("topic");
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = 0;
            boolean more = true;
            while (more) {
                PullResult result = consumer.pull(
                    queue, options.text("expression", "*"), offset, options.number("max-num", 32));
                offset = result.getNextBeginOffset();
                if (result.getMsgFoundList() != null) {
                    result.getMsgFoundList().forEach(message -> Report.message("message", message));
                }
                more = !result.getPullStatus().name().equals("NO_NEW_MSG");
            }
            Report.emit("queue-end",
                "queue", queue.getQueueId(),
                "next", offset,
                "min", consumer.minOffset(queue),
                "max", consumer.maxOffset(queue),
                "earliest_store_ms", consumer.earliestMsgStoreTime(queue),
                "search_at_0", consumer.searchOffset(queue, 0),
                "search", consumer.searchOffset(queue, Long.parseLong(options.text("search", "0"))));
        }
        Report.emit("done");
        consumer.shutdown();
        Report.emit("stopped");
    }

    /** DefaultLitePullConsumer with group management, until standard input ends; commits by itself. */
    static void litePull(Options options) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(options.required("group"), options.credentials());
        options.connected(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String expression = options.text("expression", "*");
        MessageSelector selector = options.flag("sql")
            ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
        consumer.subscribe(options.required("topic"), selector);
        consumer.start();
        Report.emit("started");
        AtomicBoolean ended = new AtomicBoolean();
        Thread poller = new Thread(() -> {
            while (!ended.get()) {
                for (MessageExt message : consumer.poll(200)) {
                    Report.message("message", message);
                }
            }
        });
        poller.start();
        Report.waitForEndOfInput();
        ended.set(true);
        poller.join();
        Set<MessageQueue> assigned = consumer.assignment();
        List<String> queues = new ArrayList<>();
        assigned.forEach(queue -> queues.add("" + queue.getQueueId()));
        consumer.commitSync();
        consumer.shutdown();
        Report.emit("stopped", "queues", String.join(",", queues));
    }

    /**
     * DefaultLitePullConsumer that names its queues itself, each from the place of --from-ms (a store time); what was
     * committed by hand is asked for again at the end.
     */
    static void assigned(Options options) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(options.required("group"), options.credentials());
        options.connected(consumer);
        consumer.setAutoCommit(false);
        consumer.start();
        Report.emit("started");
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(options.required("topic")));
        consumer.assign(queues);
        long from = Long.parseLong(options.text("from-ms", "0"));
        for (MessageQueue queue : queues) {
            consumer.seek(queue, consumer.offsetForTimestamp(queue, from));
        }
        for (int left = options.number("count", 1); left > 0; ) {
            for (MessageExt message : consumer.poll(1000)) {
                Report.message("message", message);
                left--;
            }
        }
        consumer.commitSync();
        for (MessageQueue queue : queues) {
            Report.emit("committed", "queue", queue.getQueueId(), "offset", consumer.committed(queue));
        }
        consumer.shutdown();
        Report.emit("stopped");
    }

    private static void pause(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
