package trivet.interop;

/** The unmodified Java client as a subject of black-box tests: one subcommand, options, JSON lines out. */
public final class Interop {
    private Interop() {}

    public static void main(String[] args) {
        int status = 0;
        try {
            run(args);
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        // The client leaves threads of its own running.
        System.exit(status);
    }

    private static void run(String[] args) throws Exception {
        Options options = new Options(args, 1);
        switch (args[0]) {
            case "send":
                new Send(options).run();
                break;
            case "push":
                Receive.push(options);
                break;
            case "pull":
                Receive.pull(options);
                break;
            case "litepull":
                Receive.litePull(options);
                break;
            case "assigned":
                Receive.assigned(options);
                break;
            case "admin":
                Admin.run();
                break;
            case "ask":
                Ask.run(options);
                break;
            case "transaction":
                Dialogue.transaction(options);
                break;
            case "request":
                Dialogue.request(options);
                break;
            case "reply":
                Dialogue.reply(options);
                break;
            default:
                throw new IllegalArgumentException("no subcommand " + args[0]);
        }
    }
}
