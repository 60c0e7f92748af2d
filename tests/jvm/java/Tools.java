import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools, one after the other in one warm JVM, each called by its main as its script calls it.
 *
 * A line on stdin names the class of a tool and its arguments, with tabs between them. The answer on stdout is a line
 * with the exit code and the lengths in bytes of what the tool wrote to stdout and stderr, and then both.
 */
public final class Tools {
    /** Thrown where a tool ends the JVM, so that it goes no further. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1L;

        Ended() {
            super(null, null, false, false);
        }
    }

    /** One of System.out and System.err. Set once, since Scala's Console keeps what it finds at its first use. */
    private static final class Captured extends OutputStream {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] some, int offset, int length) {
            if (exitCode == null) {
                bytes.write(some, offset, length);
            }
        }

        synchronized byte[] take() {
            byte[] taken = bytes.toByteArray();
            bytes.reset();
            return taken;
        }
    }

    /** With what the running tool ended the JVM, if it has: what it does with the Ended then never happened. */
    private static volatile Integer exitCode;

    private Tools() {}

    public static void main(String[] args) throws IOException {
        PrintStream answers = System.out;
        Captured out = new Captured();
        Captured err = new Captured();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            if (exitCode == null) {
                exitCode = code;
            }
            throw new Ended();
        });
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            int code = run(line.split("\t", -1));
            byte[] written = out.take();
            byte[] complained = err.take();
            String head = code + " " + written.length + " " + complained.length + "\n";
            answers.write(head.getBytes(StandardCharsets.UTF_8));
            answers.write(written);
            answers.write(complained);
            answers.flush();
        }
    }

    private static int run(String[] words) {
        Object args = Arrays.copyOfRange(words, 1, words.length);
        exitCode = null;
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, args);
        } catch (InvocationTargetException thrown) {
            if (exitCode == null) {
                // As the JVM ends that runs one tool.
                thrown.getCause().printStackTrace();
                exitCode = 1;
            }
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            exitCode = 1;
        }
        return exitCode == null ? 0 : exitCode;
    }
}

/** The calls that kafka-ui makes when it loads a cluster, for a topic and a group of the same name. */
final class KafkaUi {
    private KafkaUi() {}

    public static void main(String[] args) throws Exception {
        String name = args[2];
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        TopicPartition first = new TopicPartition(name, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[1]))) {
            admin.alterConsumerGroupOffsets(name, Map.of(first, new OffsetAndMetadata(0))).all().get();
            List<Integer> nodes = admin.describeCluster().nodes().get().stream().map(Node::id).toList();
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, nodes.get(0).toString());
            Config ofBroker = admin.describeConfigs(List.of(broker)).all().get().get(broker);
            var version = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("metadata.version");
            System.out.println(ofBroker.get("inter.broker.protocol.version").value() + " " + version.maxVersionLevel());
            boolean listed = admin.listTopics().names().get().contains(name);
            int partitions = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size();
            long end = admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get().get(first).offset();
            int logDirs = admin.describeLogDirs(nodes).allDescriptions().get().size();
            System.out.println(listed + " " + partitions + " " + end + " " + (logDirs == nodes.size()));
            boolean leads = nodes.contains(admin.describeMetadataQuorum().quorumInfo().get().leaderId());
            boolean grouped = admin.listGroups().all().get().stream().anyMatch(group -> group.groupId().equals(name));
            GroupState state = admin.describeConsumerGroups(List.of(name)).all().get().get(name).groupState();
            var offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
            System.out.println(leads + " " + grouped + " " + state + " " + offsets.get(first).offset());
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "7000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(topic, List.of(change))).all().get();
            var all = new DescribeConfigsOptions().includeDocumentation(true).includeSynonyms(true);
            Config configs = admin.describeConfigs(List.of(topic), all).all().get().get(topic);
            boolean documented = configs.entries().stream().noneMatch(config -> config.documentation().isEmpty());
            ConfigEntry kept = configs.get("cleanup.policy");
            String changed = configs.get("retention.ms").value();
            System.out.println(documented + " " + kept.value() + " " + kept.source() + " " + changed);
        }
    }
}
