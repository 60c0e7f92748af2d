import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicReference;

/**
 * stderr that remembers the first exception printed to it.
 *
 * Kafka's perf tool prints the exception of a record that was not written and counts the record all the same: a
 * broker that refuses everything would be the fastest.
 */
final class Errors extends PrintStream {
    private static final AtomicReference<String> FIRST = new AtomicReference<>();

    Errors() {
        super(new FileOutputStream(FileDescriptor.err), true, StandardCharsets.UTF_8);
    }

    @Override
    public void println(Object printed) {
        if (printed instanceof Throwable) {
            FIRST.compareAndSet(null, String.valueOf(printed));
        }
        super.println(printed);
    }

    /** Returns the first exception since the last call, or null. */
    static String take() {
        return FIRST.getAndSet(null);
    }
}
