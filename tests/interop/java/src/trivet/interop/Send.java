package trivet.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Sends numbered messages, body "prefix" + index, in one of the client's modes; one event for each. */
final class Send {
    private static final int ASYNC_IN_FLIGHT = 64;
    private static final int SEND_MESSAGE_V2 = 310;

    private final Options options;
    private final DefaultMQProducer producer;
    private final String[] tags;

    Send(Options options) {
        this.options = options;
        String names = options.text("tags", "");
        this.tags = names.isEmpty() ? new String[0] : names.split(",");
        RPCHook hook = options.flag("repeat") ? new Repeated() : options.credentials();
        this.producer = new DefaultMQProducer(options.required("group"), hook, options.flag("trace"), null);
        options.connected(producer);
        producer.setSendMsgTimeout(options.number("timeout-ms", 3000));
        producer.setVipChannelEnabled(options.flag("vip"));
        if (options.flag("uncompressed")) {
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        }
        producer.setMaxMessageSize(options.number("max-size", producer.getMaxMessageSize()));
    }

    void run() throws Exception {
        producer.start();
        Report.emit("started");
        int count = options.number("count", 1);
        AtomicBoolean ended = new AtomicBoolean();
        if (count == 0) {
            Thread watch = new Thread(() -> {
                try {
                    Report.waitForEndOfInput();
                } catch (java.io.IOException error) {
                    // a closed input is an ended one
                }
                ended.set(true);
            });
            watch.setDaemon(true);
            watch.start();
        }
        String mode = options.text("mode", "sync");
        Semaphore inFlight = new Semaphore(ASYNC_IN_FLIGHT);
        int batch = mode.equals("batch") ? options.number("batch", 10) : 1;
        for (int index = 0; count == 0 ? !ended.get() : index < count; index += batch) {
            Thread.sleep(options.number("pause-ms", 0));
            long begin = System.nanoTime();
            int number = index;
            try {
                if (mode.equals("async")) {
                    inFlight.acquire();
                    producer.send(build(number), callback(number, begin, inFlight));
                    continue;
                }
                SendResult result = Again.whileThereIsNoRoute(
                    number, producer.getSendMsgTimeout(), () -> send(mode, number, batch, begin));
                if (result == null) {
                    Report.emit("sent", "index", number);
                } else {
                    report(number, begin, result);
                }
            } catch (Exception error) {
                Report.emit("failed", "index", number, "error", Report.describe(error));
            }
        }
        inFlight.acquire(ASYNC_IN_FLIGHT);
        Report.emit("done");
        if (mode.equals("oneway") || options.flag("linger")) {
            Report.waitForEndOfInput();
        }
        producer.shutdown();
        Report.emit("stopped");
    }

    /** One send that is waited for; null where nobody answers. */
    private SendResult send(String mode, int index, int batch, long begin) throws Exception {
        switch (mode) {
            case "sync":
                Message single = build(index);
                for (int again = options.number("repeat", 1); again > 1; again--) {
                    report(index, begin, producer.send(single));
                }
                return producer.send(single);
            case "orderly":
                return producer.send(build(index),
                    (queues, message, shard) -> queues.get((Integer) shard % queues.size()),
                    index % options.number("shards", 4));
            case "oneway":
                producer.sendOneway(build(index));
                return null;
            case "batch":
                List<Message> messages = new ArrayList<>();
                for (int i = 0; i < batch; i++) {
                    messages.add(build(index + i));
                }
                return producer.send(messages);
            default:
                throw new IllegalArgumentException("--mode " + mode);
        }
    }

    private SendCallback callback(int index, long begin, Semaphore inFlight) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                report(index, begin, result);
                inFlight.release();
            }

            @Override
            public void onException(Throwable error) {
                Report.emit("failed", "index", index, "error", Report.describe(error));
                inFlight.release();
            }
        };
    }

    private static void report(int index, long begin, SendResult result) {
        Report.emit("sent",
            "index", index,
            "ms", (System.nanoTime() - begin) / 1e6,
            "status", result.getSendStatus().name().replace("SEND_OK", "OK"),
            "offset", result.getQueueOffset(),
            "queue", result.getMessageQueue().getQueueId(),
            "broker", result.getMessageQueue().getBrokerName(),
            "msg_id", result.getMsgId(),
            "offset_msg_id", String.valueOf(result.getOffsetMsgId()));
    }

    private Message build(int index) {
        String prefix = options.text("prefix", "m-");
        StringBuilder body = new StringBuilder(prefix + index);
        for (int size = options.number("size", 0); body.length() < size; ) {
            body.append('.');
        }
        Message message = new Message(options.required("topic"), body.toString().getBytes(StandardCharsets.UTF_8));
        message.setKeys("key-" + prefix + index);
        if (tags.length > 0) {
            message.setTags(tags[index % tags.length]);
        }
        int level = options.number("delay-level", 0);
        if (level != 0) {
            message.setDelayTimeLevel(level > 0 ? level : index + 1); // -1: each message another level
        }
        for (String name : new String[] {"delay-sec", "delay-ms", "deliver-in-ms"}) {
            if (options.flag(name)) {
                appoint(message, name, options.number(name, 0));
            }
        }
        for (String pair : options.text("properties", "").split(",")) {
            int equals = pair.indexOf('=');
            if (equals > 0) {
                String value = pair.substring(equals + 1);
                message.putUserProperty(pair.substring(0, equals), value.equals("%") ? "" + index : value);
            }
        }
        return message;
    }

    /** Gives the message a delivery time of its own, by the 5.x methods where they are; 4.9 can name the property only. */
    private static void appoint(Message message, String name, int value) {
        boolean absolute = name.equals("deliver-in-ms");
        long argument = absolute ? System.currentTimeMillis() + value : value;
        String setter = absolute ? "setDeliverTimeMs" : name.equals("delay-ms") ? "setDelayTimeMs" : "setDelayTimeSec";
        String property = absolute ? "TIMER_DELIVER_MS" : name.equals("delay-ms") ? "TIMER_DELAY_MS" : "TIMER_DELAY_SEC";
        try {
            Message.class.getMethod(setter, long.class).invoke(message, argument);
        } catch (NoSuchMethodException olderClient) {
            MessageAccessor.putProperty(message, property, String.valueOf(argument));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Marks each send as one that may have been tried before (docs/compatibility.md), as Trivet's own client does. */
    private static final class Repeated implements RPCHook {
        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            if (request.getCode() == SEND_MESSAGE_V2) {
                request.addExtField("once", "0");
                request.addExtField("again", "true");
            }
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            // nothing to see to
        }
    }
}
