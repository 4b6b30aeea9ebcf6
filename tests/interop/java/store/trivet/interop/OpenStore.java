package trivet.interop;

import java.io.File;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store classes over a directory that Trivet has written: recovers it as a broker would that starts, and
 * prints every message that its ConsumeQueues lead to, and what its IndexFiles find under each message's keys.
 *
 * <p>Arguments: directory, node id, bytes of a data file and of a ConsumeQueue's file, slots and entries of an index
 * file. Use a copy of the directory: recovery writes.
 */
public final class OpenStore {
    private OpenStore() {}

    public static void main(String[] args) throws Exception {
        int status = 0;
        try {
            read(open(args), new File(args[0], "consumequeue"));
        } catch (Throwable error) {
            error.printStackTrace();
            status = 1;
        }
        Runtime.getRuntime().halt(status);
    }

    private static DefaultMessageStore open(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setEnableDLegerCommitLog(true);
        config.setdLegerGroup("broker-a");
        config.setdLegerSelfId(args[1]);
        config.setdLegerPeers(args[1] + "-127.0.0.1:1");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[2]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[3]));
        config.setMaxHashSlotNum(Integer.parseInt(args[4]));
        config.setMaxIndexNum(Integer.parseInt(args[5]));
        // 5.x asks for the table of topics, too.
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        Object[] arguments = new Object[constructor.getParameterCount()];
        arguments[0] = config;
        arguments[1] = new BrokerStatsManager("DefaultCluster", false);
        arguments[3] = new BrokerConfig();
        if (arguments.length > 4) {
            arguments[4] = new ConcurrentHashMap<String, Object>();
        }
        DefaultMessageStore store = (DefaultMessageStore) constructor.newInstance(arguments);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        // A store that is not started refuses to be read; to start it would elect a leader and write.
        Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
        shutdown.setAccessible(true);
        shutdown.set(store, false);
        return store;
    }

    private static void read(MessageStore store, File queues) throws Exception {
        for (String topic : queues.list()) {
            for (String queue : new File(queues, topic).list()) {
                readQueue(store, topic, Integer.parseInt(queue));
            }
        }
        emit("end", "max_position", store.getMaxPhyOffset(), "min_position", store.getMinPhyOffset());
    }

    private static void readQueue(MessageStore store, String topic, int queue) throws Exception {
        long end = store.getMaxOffsetInQueue(topic, queue);
        emit("queue", "topic", topic, "queue", queue, "min", store.getMinOffsetInQueue(topic, queue), "max", end);
        for (long offset = store.getMinOffsetInQueue(topic, queue); offset < end; ) {
            GetMessageResult result = store.getMessage("reader", topic, queue, offset, 32, null);
            List<ByteBuffer> records = result.getMessageBufferList();
            if (records.isEmpty()) {
                throw new IllegalStateException(topic + "/" + queue + " at " + offset + ": " + result.getStatus());
            }
            for (ByteBuffer record : records) {
                MessageExt message = MessageDecoder.decode(record);
                MessageExt looked = store.lookMessageByOffset(message.getCommitLogOffset());
                emit("message",
                    "topic", message.getTopic(),
                    "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "position", message.getCommitLogOffset(),
                    "store_ms", message.getStoreTimestamp(),
                    "sys_flag", message.getSysFlag(),
                    "body", base64(message.getBody()),
                    "properties", properties(message),
                    "looked_up", looked != null && looked.getMsgId().equals(message.getMsgId()),
                    "found_by_key", foundByKey(store, message));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    /** Whether the index leads from the message's unique key to its record. */
    private static boolean foundByKey(MessageStore store, MessageExt message) {
        String key = message.getProperty("UNIQ_KEY");
        if (key == null) {
            return false;
        }
        QueryMessageResult result = store.queryMessage(message.getTopic(), key, 64, 0, Long.MAX_VALUE);
        boolean found = false;
        for (ByteBuffer record : result.getMessageBufferList()) {
            found |= MessageDecoder.decode(record).getCommitLogOffset() == message.getCommitLogOffset();
        }
        result.release();
        return found;
    }

    private static String properties(MessageExt message) {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, String> entry : new TreeMap<>(message.getProperties()).entrySet()) {
            text.append(entry.getKey()).append('\u0001').append(entry.getValue()).append('\u0002');
        }
        return base64(text.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? "" : Base64.getEncoder().encodeToString(bytes);
    }

    /** One JSON line; texts are topics and base64 and need no escapes. */
    private static void emit(String event, Object... fields) {
        StringBuilder line = new StringBuilder("{\"event\":\"").append(event).append('"');
        for (int i = 0; i < fields.length; i += 2) {
            boolean isText = fields[i + 1] instanceof String;
            line.append(",\"").append(fields[i]).append(isText ? "\":\"" : "\":").append(fields[i + 1]);
            line.append(isText ? "\"" : "");
        }
        System.out.println(line.append('}'));
    }
}
