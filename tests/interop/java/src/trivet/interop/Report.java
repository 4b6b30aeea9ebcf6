package trivet.interop;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Events as JSON lines on standard output; the vocabulary is described in cpp_client/common.py. */
final class Report {
    /** Standard output as it was at the start: what mqadmin prints is captured (Admin). */
    private static final PrintStream OUT = System.out;

    private Report() {}

    /** Prints one event; fields are name, value, name, value... with values String, Number or Boolean. */
    static void emit(String event, Object... fields) {
        StringBuilder line = new StringBuilder("{\"event\":").append(quoted(event));
        line.append(",\"at_ms\":").append(System.currentTimeMillis());
        for (int i = 0; i < fields.length; i += 2) {
            Object value = fields[i + 1];
            line.append(',').append(quoted((String) fields[i])).append(':');
            line.append(value instanceof String ? quoted((String) value) : String.valueOf(value));
        }
        synchronized (Report.class) {
            OUT.println(line.append('}'));
            OUT.flush();
        }
    }

    static void message(String event, MessageExt message) {
        emit(event,
            "topic", message.getTopic(),
            "body", body(message),
            "tags", orEmpty(message.getTags()),
            "keys", orEmpty(message.getKeys()),
            "queue", message.getQueueId(),
            "offset", message.getQueueOffset(),
            "commit_log_offset", message.getCommitLogOffset(),
            "msg_id", message.getMsgId(),
            "sys_flag", message.getSysFlag(),
            "reconsume", message.getReconsumeTimes(),
            "born_ms", message.getBornTimestamp(),
            "store_ms", message.getStoreTimestamp(),
            "properties", String.valueOf(message.getProperties()));
    }

    static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** The error and its causes in one line. */
    static String describe(Throwable error) {
        String cause = error.getCause() == null ? "" : " < " + describe(error.getCause());
        return error.getClass().getSimpleName() + ": " + orEmpty(error.getMessage()) + cause;
    }

    /** Blocks until standard input ends: that is how a driver is told to stop. */
    static void waitForEndOfInput() throws IOException {
        byte[] ignored = new byte[64];
        while (System.in.read(ignored) >= 0) {
            // what is written there means nothing
        }
    }

    private static String orEmpty(String value) {
        return value == null ? "" : value;
    }

    private static String quoted(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
