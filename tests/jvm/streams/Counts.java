import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Counts words, exactly once: BOOTSTRAP STATE-DIRECTORY WINDOW-MS GROUP-PROTOCOL. Goes on until it is killed.
 *
 * Each word of `lines` is joined with its label of the table `labels`. For each, LABEL/WORD and how often that came so
 * far goes to `counts`, and LABEL/WORD@START and how often it came in the window from START on to `windows`.
 */
public final class Counts {
    private Counts() {}

    public static void main(String[] args) {
        Duration window = Duration.ofMillis(Long.parseLong(args[2]));
        Properties settings = new Properties();
        settings.put("application.id", "word-count");
        settings.put("bootstrap.servers", args[0]);
        settings.put("state.dir", args[1]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("num.stream.threads", "2");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        // Each word makes a record of each result: none is left out in favour of the next.
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("auto.offset.reset", "earliest");
        settings.put("group.protocol", args[3]);
        if (args[3].equals("classic")) {
            // By the other protocol the broker says so.
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "1000");
        }
        settings.put("metadata.max.age.ms", "5000");
        settings.put("reconnect.backoff.max.ms", "500");

        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> labels = builder.table("labels");
        KStream<String, String> lines = builder.stream("lines");
        KStream<String, String> labelled = lines
                .flatMap((key, line) -> Arrays.stream(line.split(" ")).map(word -> KeyValue.pair(word, word)).toList())
                .join(labels, (word, label) -> label + "/" + word)
                .selectKey((word, name) -> name)
                .repartition();
        labelled.groupByKey().count().toStream().mapValues(String::valueOf).to("counts");
        labelled.groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(window, Duration.ofDays(1)))
                .count()
                .toStream((name, count) -> name.key() + "@" + name.window().start())
                .mapValues(String::valueOf)
                .to("windows");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
    }
}
