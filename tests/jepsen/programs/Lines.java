import java.io.IOException;

/** Lines on stdout, and the end of stdin. */
final class Lines {
    private Lines() {}

    static synchronized void write(String line) {
        System.out.println(line.replace('\n', ' '));
    }

    static void whenStdinEnds(Runnable then) {
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException ended) {
                // As good as its end.
            }
            then.run();
        });
        waiting.setDaemon(true);
        waiting.start();
    }
}
