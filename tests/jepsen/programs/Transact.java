import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own producer with transactions of its own, or with copies of a topic, as programs/__init__.py says. */
public final class Transact {
    private static final double COMMITTED = 0.75;
    private static final Random RANDOM = new Random();
    private static volatile boolean going = true;

    private Transact() {}

    public static void main(String[] args) {
        String topic = args[1];
        int partitions = Integer.parseInt(args[2]);
        Lines.whenStdinEnds(() -> going = false);
        try {
            KafkaProducer<String, String> producer = producer(args[0], args[3]);
            untilAnswered(producer::initTransactions);
            if (args.length == 5) {
                write(producer, topic, partitions, args[4]);
            } else {
                try (KafkaConsumer<String, String> consumer = consumer(args[0], args[6])) {
                    consumer.subscribe(List.of(args[5]));
                    copy(producer, consumer, topic, partitions, args[4]);
                }
            }
        } catch (KafkaException | InterruptedException error) {
            Lines.write("failed " + error);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void write(KafkaProducer<String, String> producer, String topic, int partitions, String name)
            throws InterruptedException {
        for (int each = 0; going; each++) {
            String transaction = name + "." + each;
            int pause = new int[] {0, 0, 10, 100, 500}[RANDOM.nextInt(5)];
            int count = 1 + RANDOM.nextInt(12);
            producer.beginTransaction();
            try {
                for (int number = 0; number < count; number++) {
                    int partition = RANDOM.nextInt(partitions);
                    Lines.write("put " + transaction + " " + partition + " " + number);
                    producer.send(new ProducerRecord<>(topic, partition, null, transaction + "/" + number));
                    Thread.sleep(pause == 0 ? 0 : RANDOM.nextInt(pause));
                }
                end(producer, transaction, RANDOM.nextDouble() < COMMITTED);
            } catch (KafkaException error) {
                end(producer, transaction, false);
            }
            Thread.sleep(RANDOM.nextInt(100));
        }
    }

    private static void copy(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            String topic,
            int partitions,
            String name) {
        for (int each = 0; going; each++) {
            String transaction = name + "." + each;
            ConsumerRecords<String, String> records;
            try {
                records = consumer.poll(Duration.ofMillis(100));
            } catch (TimeoutException again) {
                continue;
            }
            if (records.isEmpty()) {
                continue;
            }
            boolean committed = false;
            producer.beginTransaction();
            try {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                int number = 0;
                for (ConsumerRecord<String, String> record : records) {
                    int partition = RANDOM.nextInt(partitions);
                    Lines.write("put " + transaction + " " + partition + " " + number + " " + record.partition() + " "
                            + record.offset() + " " + record.value());
                    producer.send(new ProducerRecord<>(topic, partition, null, transaction + "/" + number));
                    offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                    number++;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                committed = end(producer, transaction, RANDOM.nextDouble() < COMMITTED);
            } catch (KafkaException error) {
                end(producer, transaction, false);
            }
            if (!committed) {
                rewind(consumer);
            }
        }
    }

    /** Commits or aborts, and returns true if it is committed; what a commit throws says that it may be aborted. */
    private static boolean end(KafkaProducer<String, String> producer, String transaction, boolean commit) {
        if (commit) {
            Lines.write("committing " + transaction);
        }
        untilAnswered(commit ? producer::commitTransaction : producer::abortTransaction);
        Lines.write((commit ? "committed " : "aborted ") + transaction);
        return commit;
    }

    private static void rewind(KafkaConsumer<String, String> consumer) {
        while (going) {
            try {
                consumer.committed(consumer.assignment()).forEach((place, found) ->
                        consumer.seek(place, found == null ? 0 : found.offset()));
                return;
            } catch (TimeoutException again) {
                // It is asked again: what is not copied yet must not be passed.
            }
        }
    }

    private static void untilAnswered(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException again) {
                // The call goes on where it was.
            }
        }
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String transactionalId) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", transactionalId);
        settings.put("transaction.timeout.ms", "15000");
        settings.put("linger.ms", "2");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "15000");
        settings.put("max.block.ms", "20000");
        settings.put("retry.backoff.ms", "20");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "5000");
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("max.poll.records", "50");
        settings.put("session.timeout.ms", "10000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("request.timeout.ms", "15000");
        settings.put("default.api.timeout.ms", "15000");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("metadata.max.age.ms", "5000");
        settings.put("reconnect.backoff.max.ms", "500");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }
}
