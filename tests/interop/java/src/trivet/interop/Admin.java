package trivet.interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin, many commands in one process: each line of standard input holds a command's words, separated by tabs, and is
 * answered by one event with what the command printed. A virtual machine for each would take longer than the command.
 */
final class Admin {
    private Admin() {}

    static void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.emit("started");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            PrintStream printed = new PrintStream(output, true, "UTF-8");
            PrintStream standardOutput = System.out;
            PrintStream standardError = System.err;
            System.setOut(printed);
            System.setErr(printed);
            try {
                forgetCommands();
                MQAdminStartup.main0(line.isEmpty() ? new String[0] : line.split("\t"), null);
            } catch (Throwable error) {
                error.printStackTrace(printed);
            } finally {
                System.setOut(standardOutput);
                System.setErr(standardError);
            }
            Report.emit("admin", "output", output.toString("UTF-8"));
        }
        Report.emit("stopped");
    }

    /** mqadmin is made for one command a process: some keep the client that they have shut down, unless made anew. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
