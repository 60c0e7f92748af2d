package korvet.broker;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/** Appends a line for each test when it ends: method, result, seconds, failure; between tabs. */
public final class Report implements TestExecutionListener {
    private static final Path FILE = Path.of(System.getProperty("korvet.report"));
    private static final Pattern INVOCATION = Pattern.compile("test-template-invocation:#(\\d+)");

    private final Map<String, Long> begun = new ConcurrentHashMap<>();

    @Override
    public void executionStarted(TestIdentifier test) {
        begun.put(test.getUniqueId(), System.nanoTime());
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        boolean passed = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (passed && !test.isTest()) {
            return;
        }
        result.getThrowable().ifPresent(failure -> {
            System.err.println("=== " + test.getUniqueId());
            failure.printStackTrace();
        });
        Throwable failure = result.getThrowable().orElse(null);
        boolean skipped = result.getStatus() == TestExecutionResult.Status.ABORTED;
        String word = passed ? "passed" : skipped ? "skipped" : inProcess(failure) ? "in-process" : "failed";
        append(test, word, failure == null ? "" : failure.toString());
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        append(test, "skipped", reason);
    }

    /** By the text too: some tests throw a new exception with the message of the first. */
    private static boolean inProcess(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).contains(InProcessException.BEGINNING)) {
                return true;
            }
        }
        return false;
    }

    private synchronized void append(TestIdentifier test, String word, String failure) {
        // What fails before or after all tests has no method.
        String method = test.getSource()
                .filter(MethodSource.class::isInstance)
                .map(source -> ((MethodSource) source).getMethodName())
                .orElse("-");
        Matcher invocation = INVOCATION.matcher(test.getUniqueId());
        if (invocation.find()) {
            method += "#" + invocation.group(1);
        }
        long nanos = System.nanoTime() - begun.getOrDefault(test.getUniqueId(), System.nanoTime());
        String seconds = String.format(Locale.ROOT, "%.1f", nanos / 1e9);
        String line = failure.replaceAll("\\s+", " ");
        try {
            Files.writeString(FILE, String.join("\t", method, word, seconds, line) + "\n",
                    StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
