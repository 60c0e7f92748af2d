import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.tools.ProducerPerformance;

/** Runs kafka-producer-perf-test, several at once where asked, as threads of this warm process. */
final class Produce {
    /**
     * stderr that remembers the first exception printed to it.
     *
     * Kafka's perf tool prints the exception of a record that was not written and counts the record all the same: a
     * broker that refuses everything would be the fastest.
     */
    static final class Errors extends PrintStream {
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

    private Produce() {
    }

    /** The arguments of the perf tool; what is not named here is the client's default. */
    private static String[] arguments(Load.Options options, int records) {
        List<String> words = new ArrayList<>(List.of(
            "--topic", options.text("topic"),
            "--num-records", String.valueOf(records),
            "--payload-file", options.text("payloads"),
            "--throughput", "-1"));
        if (options.number("transaction_ms", 0) != 0) {
            words.addAll(List.of("--transaction-duration-ms", options.text("transaction_ms")));
        }
        words.add("--command-property");
        options.client().forEach((name, value) -> words.add(name + "=" + value));
        for (String name : List.of("acks", "compression.type", "batch.size", "linger.ms")) {
            String value = options.text(name, "");
            if (!value.isEmpty()) {
                words.add(name + "=" + value);
            }
        }
        return words.toArray(new String[0]);
    }

    /** Returns how many records a topic holds, where its offsets are dense; 0 where they are not. */
    private static long held(Load.Options options) {
        if (options.number("dense", 0) == 0) {
            return 0;
        }
        try (KafkaConsumer<byte[], byte[]> consumer = Consume.consumer(options)) {
            return consumer.endOffsets(consumer.assignment()).values().stream().mapToLong(Long::longValue).sum();
        }
    }

    private static void checkCount(Load.Options options, long before, long written) {
        long grown = held(options) - before;
        // Each commit has a marker in the log, some of them later: Kafka answers before it writes them.
        boolean whole = options.number("transaction_ms", 0) != 0 ? grown >= written : grown == written;
        if (options.number("dense", 0) != 0 && !whole) {
            throw new IllegalStateException("of " + written + " records " + grown + " are in the log");
        }
    }

    static String run(Load.Options options) throws Exception {
        int producers = options.number("producers", 1);
        int each = options.number("records") / producers;
        Errors.take();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long held = held(options);
        CyclicBarrier start = new CyclicBarrier(producers + 1);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < producers; i++) {
            Thread thread = new Thread(() -> {
                try {
                    start.await();
                    ProducerPerformance.main(arguments(options, each));
                } catch (Exception broken) {
                    failure.set(broken);
                }
            });
            thread.start();
            threads.add(thread);
        }
        start.await();
        long began = System.nanoTime();
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        checkCount(options, held, (long) each * producers);
        String refused = Errors.take();
        if (refused != null) {
            throw new IllegalStateException("records were not written: " + refused);
        }
        return String.format("records=%d seconds=%.6f", each * producers, seconds);
    }
}
