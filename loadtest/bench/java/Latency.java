import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * End-to-end latency at a fixed rate, producer and consumer in this process and on one clock.
 *
 * A value begins with the time at which it was due, not at which it was sent, so a stall also counts against the
 * records that had to wait for it.
 */
final class Latency {
    private static final long SILENCE_NANOS_MAX = TimeUnit.SECONDS.toNanos(20);

    private Latency() {
    }

    private static void produce(Load.Options options, int records, int rate) {
        Properties properties = options.client();
        properties.put("acks", options.text("acks", "all"));
        if (!options.text("linger.ms", "").isEmpty()) {
            properties.put("linger.ms", options.text("linger.ms"));
        }
        int size = options.number("size");
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(options.text("topic"));
            long start = System.nanoTime();
            for (int i = 0; i < records; i++) {
                long due = start + i * 1_000_000_000L / rate;
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                byte[] value = new byte[size];
                ByteBuffer.wrap(value).putLong(due);
                producer.send(new ProducerRecord<>(options.text("topic"), value));
            }
        }
    }

    static String run(Load.Options options) throws Exception {
        int rate = options.number("rate");
        int warm = rate * options.number("warm_seconds");
        int records = warm + rate * options.number("seconds");
        long[] nanos = new long[records];
        int count = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = Consume.consumer(options)) {
            Consume.toTheEnd(consumer);
            Thread producer = new Thread(() -> produce(options, records, rate));
            producer.start();
            long heard = System.nanoTime();
            while (count < records) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    heard = System.nanoTime();
                    nanos[count++] = heard - ByteBuffer.wrap(record.value()).getLong();
                }
                if (System.nanoTime() - heard > SILENCE_NANOS_MAX) {
                    throw new IllegalStateException("only " + count + " of " + records + " records came");
                }
            }
            producer.join();
        }
        long[] steady = Arrays.copyOfRange(nanos, warm, records);
        Arrays.sort(steady);
        return String.format("records=%d p50_ms=%.4f p99_ms=%.4f p999_ms=%.4f max_ms=%.4f", steady.length,
            quantile(steady, 0.5), quantile(steady, 0.99), quantile(steady, 0.999), quantile(steady, 1));
    }

    private static double quantile(long[] sorted, double part) {
        int index = (int) Math.ceil(part * sorted.length) - 1;
        return sorted[Math.max(index, 0)] / 1e6;
    }
}
