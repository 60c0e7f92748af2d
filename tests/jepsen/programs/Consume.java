import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Kafka's own consumer as a reader, a member of a group or one that commits, as programs/__init__.py says. */
public final class Consume {
    private static final Duration TURN = Duration.ofMillis(100);
    private static volatile boolean going = true;

    private Consume() {}

    public static void main(String[] args) throws Exception {
        String topic = args[2];
        int partitions = Integer.parseInt(args[3]);
        String group = args[4];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", args[0].equals("member") ? "earliest" : "none");
        settings.put("isolation.level", "read_committed");
        if (args[0].equals("member") && args[5].equals("consumer")) {
            settings.put("group.protocol", "consumer"); // the broker has the times
        } else if (args[0].equals("member")) {
            settings.put("session.timeout.ms", args[6]);
            settings.put("heartbeat.interval.ms", "1000");
        }
        settings.put("request.timeout.ms", "15000");
        settings.put("default.api.timeout.ms", "15000");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("metadata.max.age.ms", "5000");
        settings.put("reconnect.backoff.max.ms", "500");
        Lines.whenStdinEnds(() -> going = false);
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            switch (args[0]) {
                case "reader" -> read(consumer, topic, partitions, args);
                case "member" -> join(consumer, topic);
                default -> commit(consumer, new TopicPartition(topic, 0), Long.parseLong(args[5]));
            }
        } catch (KafkaException error) {
            Lines.write("failed " + error);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void read(
            KafkaConsumer<String, String> consumer, String topic, int partitions, String[] args) {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        consumer.assign(all);
        // Not by a seek to the begin, which would ask for offsets that no fault may change.
        all.forEach(each -> consumer.seek(each, Long.parseLong(args[5 + each.partition()])));
        while (going) {
            for (ConsumerRecord<String, String> record : consumer.poll(TURN)) {
                Lines.write("seen " + record.partition() + " " + record.offset() + " " + record.value());
            }
        }
    }

    private static void join(KafkaConsumer<String, String> consumer, String topic) {
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                Lines.write("revoked " + System.nanoTime() + " " + numbers(revoked));
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> lost) {
                Lines.write("lost " + System.nanoTime() + " " + numbers(lost));
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                int generation = consumer.groupMetadata().generationId();
                Lines.write("owned " + System.nanoTime() + " " + generation + " " + numbers(assigned));
            }
        });
        while (going) {
            ConsumerRecords<String, String> records = consumer.poll(TURN);
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                Lines.write("delivered " + record.partition() + " " + record.offset());
                offsets.put(
                        new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            if (!offsets.isEmpty()) {
                try {
                    long began = System.nanoTime();
                    consumer.commitSync(offsets);
                    String times = began + " " + System.nanoTime();
                    offsets.forEach((place, offset) ->
                            Lines.write("committed " + place.partition() + " " + offset.offset() + " " + times));
                } catch (KafkaException refused) {
                    // It is done again with the next records.
                }
            }
        }
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(each -> Integer.toString(each.partition())).collect(Collectors.joining(" "));
    }

    private static void commit(KafkaConsumer<String, String> consumer, TopicPartition place, long offset)
            throws InterruptedException {
        consumer.assign(List.of(place));
        long began = 0;
        while (going) {
            try {
                offset++;
                Lines.write("committing " + offset);
                consumer.commitSync(Map.of(place, new OffsetAndMetadata(offset)));
                Lines.write("committed " + offset + " " + System.nanoTime());
            } catch (RetriableException refused) {
                // The next one is higher.
            }
            try {
                // After a time-out the consumer gives the answer to the former request to the next call.
                began = began == 0 ? System.nanoTime() : began;
                OffsetAndMetadata found = consumer.committed(Set.of(place)).get(place);
                Lines.write("fetched " + (found == null ? -1 : found.offset()) + " " + began + " " + System.nanoTime());
                began = 0;
            } catch (RetriableException refused) {
                // It is asked again.
            }
            Thread.sleep(20);
        }
    }
}
