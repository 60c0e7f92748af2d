import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads with Kafka's own share consumers: each poll accepts the records of the one before. */
final class Share {
    private static final long SILENCE_NANOS_MAX = TimeUnit.SECONDS.toNanos(20);

    private final Load.Options options;
    private final String group;
    private final long records;
    private final long wanted;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong began = new AtomicLong();
    private final AtomicLong ended = new AtomicLong();

    private Share(Load.Options options) {
        this.options = options;
        this.group = options.text("topic") + "-" + System.nanoTime();
        this.records = options.number("records");
        this.wanted = TimeUnit.MILLISECONDS.toNanos(options.number("milliseconds"));
    }

    /**
     * Reads what a topic holds from its start, by the members of a new group, until the time is up or all is read. The
     * clock runs from the first records that come: members get their partitions when they next send a heartbeat.
     */
    static String run(Load.Options options) throws Exception {
        Share share = new Share(options);
        share.beginAtTheStart();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < options.number("consumers"); i++) {
            Thread thread = new Thread(() -> {
                try {
                    share.consume();
                } catch (RuntimeException broken) {
                    failure.set(broken);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        double seconds = (share.ended.get() - share.began.get()) / 1e9;
        return String.format("records=%d seconds=%.6f", share.count.get(), seconds);
    }

    private void beginAtTheStart() throws Exception {
        try (Admin admin = Admin.create(options.client())) {
            ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                new ConfigResource(ConfigResource.Type.GROUP, group),
                List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        }
    }

    private void consume() {
        Properties properties = options.client();
        properties.put("group.id", group);
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(options.text("topic")));
            long heard = System.nanoTime();
            while (count.get() < records) {
                int got = consumer.poll(Duration.ofMillis(500)).count();
                long now = System.nanoTime();
                if (began.get() != 0 && now - began.get() > wanted) {
                    break;
                }
                if (got > 0) {
                    heard = now;
                    // What came first came before the clock ran.
                    if (!began.compareAndSet(0, now)) {
                        count.addAndGet(got);
                        ended.accumulateAndGet(now, Math::max);
                    }
                } else if (now - heard > SILENCE_NANOS_MAX) {
                    throw new IllegalStateException("only " + count + " of " + records + " records came");
                }
            }
        }
    }
}
