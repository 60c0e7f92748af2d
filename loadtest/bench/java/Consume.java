import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads with Kafka's own consumer, partitions assigned, so that no group is needed. */
final class Consume {
    private static final long SILENCE_NANOS_MAX = TimeUnit.SECONDS.toNanos(20);

    private Consume() {
    }

    static KafkaConsumer<byte[], byte[]> consumer(Load.Options options) {
        Properties properties = options.client();
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> partitions = consumer.partitionsFor(options.text("topic")).stream()
            .map(info -> new TopicPartition(info.topic(), info.partition()))
            .collect(Collectors.toList());
        consumer.assign(partitions);
        return consumer;
    }

    /** Moves to the end of every partition, and asks where that is: seeking alone waits for the next poll. */
    static void toTheEnd(KafkaConsumer<byte[], byte[]> consumer) {
        consumer.seekToEnd(consumer.assignment());
        consumer.assignment().forEach(consumer::position);
    }

    private static long take(KafkaConsumer<byte[], byte[]> consumer, long records) {
        long count = 0;
        long heard = System.nanoTime();
        while (count < records) {
            int got = consumer.poll(Duration.ofMillis(500)).count();
            count += got;
            long now = System.nanoTime();
            if (got > 0) {
                heard = now;
            } else if (now - heard > SILENCE_NANOS_MAX) {
                throw new IllegalStateException("only " + count + " of " + records + " records came");
            }
        }
        return count;
    }

    /**
     * Reads what a topic holds from its start, by one new consumer after another until the time is up: a single
     * reading may be over too soon to be measured. The clock runs from a first poll to a last record.
     */
    static String backlog(Load.Options options) {
        long wanted = TimeUnit.MILLISECONDS.toNanos(options.number("milliseconds"));
        long count = 0;
        long nanos = 0;
        while (nanos < wanted) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(options)) {
                consumer.seekToBeginning(consumer.assignment());
                consumer.assignment().forEach(consumer::position);
                long began = System.nanoTime();
                count += take(consumer, options.number("records"));
                nanos += System.nanoTime() - began;
            }
        }
        return String.format("records=%d seconds=%.6f", count, nanos / 1e9);
    }

    /** Reads at the end of a topic while producers write there as fast as they can. */
    static String tail(Load.Options options) throws Exception {
        AtomicReference<String> outcome = new AtomicReference<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch atTheEnd = new CountDownLatch(1);
        int records = options.number("records") / options.number("producers", 1) * options.number("producers", 1);
        Thread reader = new Thread(() -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(options)) {
                toTheEnd(consumer);
                atTheEnd.countDown();
                long began = System.nanoTime();
                long count = take(consumer, records);
                outcome.set(String.format("records=%d seconds=%.6f", count, (System.nanoTime() - began) / 1e9));
            } catch (RuntimeException broken) {
                failure.set(broken);
                atTheEnd.countDown();
            }
        });
        reader.start();
        atTheEnd.await();
        Produce.run(options);
        reader.join();
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return outcome.get();
    }
}
