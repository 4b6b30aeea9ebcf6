import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's own producer as a subject of benchmarks/clients_in_turns.py: a line "COUNT IN_FLIGHT BYTES" in, one line of
 * JSON out. One in flight is waited for by send(), more by callbacks.
 */
public final class JavaProducer {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("BENCH");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            int[] order = Arrays.stream(line.split(" ")).mapToInt(Integer::parseInt).toArray();
            byte[] body = new byte[order[2]];
            new Random().nextBytes(body);
            long began = System.nanoTime();
            double p50 = order[1] == 1 ? oneByOne(producer, args[1], body, order[0])
                : together(producer, args[1], body, order[0], order[1]);
            double seconds = (System.nanoTime() - began) / 1e9;
            System.out.printf("{\"seconds\": %f, \"p50_ms\": %s}%n", seconds, p50 < 0 ? "null" : "" + p50);
        }
        System.exit(0); // The client leaves threads of its own running.
    }

    /** The median of the sends, in milliseconds. */
    private static double oneByOne(DefaultMQProducer producer, String topic, byte[] body, int count) throws Exception {
        long[] taken = new long[count];
        for (int i = 0; i < count; i++) {
            long began = System.nanoTime();
            producer.send(new Message(topic, body));
            taken[i] = System.nanoTime() - began;
        }
        Arrays.sort(taken);
        return taken[count / 2] / 1e6;
    }

    private static double together(DefaultMQProducer producer, String topic, byte[] body, int count, int inFlight)
            throws Exception {
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int i = 0; i < count; i++) {
            room.acquire();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failure.set(error);
                    room.release();
                }
            });
        }
        room.acquire(inFlight);
        if (failure.get() != null) {
            throw new IllegalStateException("not all were stored", failure.get());
        }
        return -1;
    }
}
