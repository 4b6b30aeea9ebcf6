import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Prints what the reference's allocation strategies give, one line of JSON a case: the golden facts of test_strategies.py.
 *
 * With the class path that tests.interop.artifacts.java_client_classpath("4.9.8") names:
 * java -cp CLASSPATH tests/broker/client/allocation/AllocationFacts.java 2>/dev/null > tests/broker/client/allocation/facts.jsonl
 */
public class AllocationFacts {
    private static final String[][] BROKERS = {
        {"broker-a"}, {"broker-b", "broker-a"}, {"east@b1", "west@b1", "east@b2", "broker-c", "north@x@y"}};
    private static final int[] QUEUES = {0, 1, 3, 8};
    private static final int[] MEMBERS = {1, 2, 3, 5, 8};

    public static void main(String[] args) throws Exception {
        for (String[] brokers : BROKERS) {
            for (int queueCount : QUEUES) {
                for (int memberCount : MEMBERS) {
                    one(brokers, queueCount, memberCount);
                }
            }
        }
    }

    private static String room(String name) {
        int at = name.indexOf('@');
        return at < 0 ? "elsewhere" : name.substring(0, at);
    }

    private static void one(String[] brokers, int queueCount, int memberCount) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        for (String broker : brokers) {
            for (int id = 0; id < queueCount; id++) {
                queues.add(new MessageQueue("TopicTest", broker, id));
            }
        }
        List<String> members = new ArrayList<>();
        String[] rooms = {"east", "west", "south"};
        for (int i = 0; i < memberCount; i++) {
            members.add(rooms[i % 3] + "@10.0." + i + ".7@" + (4000 + 37 * i) + "#" + (123456789L * (i + 1)));
        }
        Collections.sort(queues);
        Collections.sort(members);
        AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
        byRoom.setConsumeridcs(new HashSet<>(Arrays.asList("east", "west")));
        AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
        List<MessageQueue> configured = new ArrayList<>();
        for (int i = 0; i < queues.size(); i += 3) {
            configured.add(queues.get(i));
        }
        byConfig.setMessageQueueList(configured);
        AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
            public String brokerDeployIn(MessageQueue queue) {
                return room(queue.getBrokerName());
            }

            public String consumerDeployIn(String member) {
                return room(member);
            }
        };
        print("AVG", new AllocateMessageQueueAveragely(), queues, members);
        print("AVG_BY_CIRCLE", new AllocateMessageQueueAveragelyByCircle(), queues, members);
        print("CONFIG", byConfig, queues, members);
        print("MACHINE_ROOM", byRoom, queues, members);
        print("MACHINE_ROOM_NEARBY AVG", new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver),
            queues, members);
        print("MACHINE_ROOM_NEARBY CIRCLE",
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), resolver), queues, members);
        print("CONSISTENT_HASH", new AllocateMessageQueueConsistentHash(), queues, members);
        print("CONSISTENT_HASH 3", new AllocateMessageQueueConsistentHash(3), queues, members);
    }

    /** One case: indices of the queues, in the strategy's order, for each member. */
    private static void print(
        String name, AllocateMessageQueueStrategy strategy, List<MessageQueue> queues, List<String> members)
        throws Exception {
        StringBuilder line = new StringBuilder();
        TreeSet<String> brokers = new TreeSet<>();
        int perBroker = 0;
        for (MessageQueue queue : queues) {
            brokers.add(queue.getBrokerName());
            perBroker = Math.max(perBroker, queue.getQueueId() + 1);
        }
        line.append("{\"strategy\":\"").append(name).append("\",\"brokers\":").append(texts(brokers));
        line.append(",\"queues\":").append(perBroker).append(",\"members\":").append(texts(members));
        line.append(",\"shares\":[");
        for (int i = 0; i < members.size(); i++) {
            List<MessageQueue> share;
            try {
                share = strategy.allocate("group", members.get(i), queues, members);
            } catch (IllegalArgumentException noQueues) {
                share = new ArrayList<>();  // the reference refuses to divide nothing
            }
            line.append(i == 0 ? "[" : ",[");
            for (int j = 0; j < share.size(); j++) {
                line.append(j == 0 ? "" : ",").append(queues.indexOf(share.get(j)));
            }
            line.append("]");
        }
        System.out.println(line.append("]}"));
    }

    private static String texts(Iterable<String> items) {
        StringBuilder text = new StringBuilder("[");
        for (String item : items) {
            text.append(text.length() == 1 ? "\"" : ",\"").append(item).append("\"");
        }
        return text.append("]").toString();
    }
}
