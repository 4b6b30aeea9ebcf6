package trivet.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What the administration client can ask but no command of mqadmin does. Each line of standard input holds a method's
 * name and its arguments, separated by tabs, and is answered by one event with what it returned, as JSON, or threw.
 *
 * <p>By reflection, since the types of what is returned have moved between 4.x and 5.x.
 */
final class Ask {
    private static final int API_TIMEOUT_MS = 20_000;

    private Ask() {}

    static void run(Options options) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(API_TIMEOUT_MS);
        options.connected(admin);
        admin.start();
        // The instance that `admin` itself uses: it is found by the identity of the client.
        MQClientAPIImpl below = MQClientManager.getInstance().getOrCreateMQClientInstance(admin).getMQClientAPIImpl();
        Report.emit("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            try {
                Object result = ask(words, admin, below);
                Report.emit("answer", "result", String.valueOf(RemotingSerializable.toJson(result, false)));
            } catch (InvocationTargetException error) {
                Report.emit("answer", "error", Report.describe(error.getCause()));
            }
        }
        admin.shutdown();
        Report.emit("stopped");
    }

    /** Calls the method of this name and number of arguments, of the first of the two that has it. */
    private static Object ask(String[] words, Object... askable) throws ReflectiveOperationException {
        for (Object object : askable) {
            for (Method method : object.getClass().getMethods()) {
                if (method.getName().equals(words[0]) && method.getParameterCount() == words.length - 1) {
                    Object[] arguments = new Object[words.length - 1];
                    for (int i = 0; i < arguments.length; i++) {
                        arguments[i] = converted(words[i + 1], method.getParameterTypes()[i]);
                    }
                    return method.invoke(object, arguments);
                }
            }
        }
        throw new NoSuchMethodException(String.join(" ", words));
    }

    private static Object converted(String word, Class<?> type) {
        if (type == long.class) {
            return Long.parseLong(word);
        }
        if (type == boolean.class) {
            return Boolean.parseBoolean(word);
        }
        return type == Set.class ? new HashSet<>(Arrays.asList(word.split(","))) : word;
    }
}
