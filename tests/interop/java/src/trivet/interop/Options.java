package trivet.interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** Command line options "--name value" (or "--name" alone for a switch), with the defaults given where they are read. */
final class Options {
    private static final int API_TIMEOUT_MS = 20_000;

    private final Map<String, String> values = new HashMap<>();

    Options(String[] args, int from) {
        for (int i = from; i < args.length; i++) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("not an option: " + args[i]);
            }
            boolean hasValue = i + 1 < args.length && !args[i + 1].startsWith("--");
            values.put(args[i].substring(2), hasValue ? args[++i] : "true");
        }
    }

    String required(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is required");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    boolean flag(String name) {
        return values.containsKey(name);
    }

    /** The ACL hook for --access-key and --secret-key; null without them. */
    RPCHook credentials() {
        if (!flag("access-key")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(required("access-key"), required("secret-key")));
    }

    /** Has a client ask name servers and brokers, and wait for the answers on a machine that is under load. */
    <T extends ClientConfig> T connected(T client) {
        client.setNamesrvAddr(required("namesrv"));
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        client.setPollNameServerInterval(number("poll-ms", client.getPollNameServerInterval()));
        if (flag("namespace")) {
            client.setNamespace(required("namespace"));
        }
        if (flag("heartbeat-v2")) {
            setOf5(client, "setUseHeartbeatV2", true);
        }
        if (flag("broker-rebalance")) {
            setOf5(client, "setClientRebalance", false);
        }
        return client;
    }

    /** Calls a setter that only 5.x has. */
    private static void setOf5(Object client, String setter, boolean value) {
        try {
            client.getClass().getMethod(setter, boolean.class).invoke(client, value);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
