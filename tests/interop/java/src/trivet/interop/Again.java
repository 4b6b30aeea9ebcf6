package trivet.interop;

/**
 * Sends that find no route to their topic are made again, as an application would: while a group elects there is nobody
 * to send to. Such a send has not left the client.
 */
final class Again {
    private static final int PAUSE_MS = 100;

    private Again() {}

    /** One send of message --index. */
    interface Attempt<T> {
        T run() throws Exception;
    }

    /** Makes {@code attempt} until it ends otherwise than for want of a route; the last one begins within the limit. */
    static <T> T whileThereIsNoRoute(int index, int limitMs, Attempt<T> attempt) throws Exception {
        long begin = System.nanoTime();
        while (true) {
            try {
                return attempt.run();
            } catch (Exception error) {
                if (!isForWantOfRoute(error) || System.nanoTime() - begin >= limitMs * 1_000_000L) {
                    throw error;
                }
                Report.emit("again", "index", index, "error", Report.describe(error));
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static boolean isForWantOfRoute(Throwable error) {
        for (Throwable reason = error; reason != null; reason = reason.getCause()) {
            if (String.valueOf(reason.getMessage()).contains("No route info")) {
                return true;
            }
        }
        return false;
    }
}
