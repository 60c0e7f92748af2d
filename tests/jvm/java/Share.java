import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's own share consumer, driven from outside: BOOTSTRAP GROUP TOPIC [NAME=VALUE ...], the last are settings.
 *
 * It does what a line on stdin says, and answers with one line on stdout. Values of records have no spaces.
 *     poll MS                              PARTITION:OFFSET:DELIVERY-COUNT:VALUE of each record that came
 *     accept PARTITION:OFFSET ...          nothing; so do release, reject and renew
 *     commit                               of each partition PARTITION:done or PARTITION:ERROR, as commitSync says
 *     lock                                 for how many milliseconds it may keep a record
 *     close                                nothing
 * What throws is answered by `failed` and the name of what it threw.
 */
public final class Share {
    private Share() {}

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("metadata.max.age.ms", "5000");
        settings.put("reconnect.backoff.max.ms", "500");
        for (String more : Arrays.copyOfRange(args, 3, args.length)) {
            String[] pair = more.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(args[2]));
        Map<String, ConsumerRecord<String, String>> known = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String answer;
            try {
                answer = run(consumer, known, words[0], Arrays.asList(words).subList(1, words.length));
            } catch (RuntimeException thrown) {
                answer = "failed " + thrown.getClass().getSimpleName();
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(
            KafkaShareConsumer<String, String> consumer,
            Map<String, ConsumerRecord<String, String>> known,
            String verb,
            List<String> words) {
        switch (verb) {
            case "poll":
                StringBuilder came = new StringBuilder();
                known.clear();
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(Long.parseLong(words.get(0))))) {
                    String place = record.partition() + ":" + record.offset();
                    known.put(place, record);
                    came.append(place + ":" + record.deliveryCount().orElseThrow() + ":" + record.value() + " ");
                }
                return came.toString();
            case "commit":
                return consumer.commitSync().entrySet().stream()
                        .map(each -> each.getKey().partition() + ":"
                                + each.getValue().map(error -> error.getClass().getSimpleName()).orElse("done"))
                        .collect(Collectors.joining(" "));
            case "lock":
                return consumer.acquisitionLockTimeoutMs().map(String::valueOf).orElse("");
            case "close":
                consumer.close();
                return "";
            default:
                AcknowledgeType type = AcknowledgeType.valueOf(verb.toUpperCase(Locale.ROOT));
                words.forEach(place -> consumer.acknowledge(known.get(place), type));
                return "";
        }
    }
}
