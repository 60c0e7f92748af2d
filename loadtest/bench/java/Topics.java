import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartitionInfo;

/** Creates and deletes topics, and waits until that is so. */
final class Topics {
    private static final int SECONDS_MAX = 240;

    private Topics() {
    }

    private static Admin admin(Load.Options options) {
        Properties properties = options.client();
        properties.put("default.api.timeout.ms", String.valueOf(SECONDS_MAX * 1000));
        properties.put("request.timeout.ms", "120000");
        return Admin.create(properties);
    }

    /** Creates `count` topics, one request each: Kafka refuses more than 10,000 partitions in one. */
    static String create(Load.Options options) throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String pair : options.text("configs", "").split(",")) {
            if (!pair.isEmpty()) {
                String[] parts = pair.split(":", 2);
                configs.put(parts[0], parts[1]);
            }
        }
        int partitions = options.number("partitions");
        try (Admin admin = admin(options)) {
            admin.describeCluster().clusterId().get(SECONDS_MAX, TimeUnit.SECONDS);
            long start = System.nanoTime();
            List<String> names = new ArrayList<>();
            for (int i = 0; i < options.number("count", 1); i++) {
                names.add(options.text("topic") + (i == 0 ? "" : "-" + i));
                NewTopic topic = new NewTopic(names.get(i), partitions, (short) 1).configs(configs);
                admin.createTopics(Collections.singleton(topic)).all().get(SECONDS_MAX, TimeUnit.SECONDS);
            }
            awaitLeaders(admin, names, partitions);
            return String.format("seconds=%.6f", (System.nanoTime() - start) / 1e9);
        }
    }

    private static void awaitLeaders(Admin admin, List<String> names, int partitions) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        while (true) {
            boolean all = true;
            try {
                for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values()) {
                    all &= topic.partitions().size() == partitions;
                    for (TopicPartitionInfo partition : topic.partitions()) {
                        all &= partition.leader() != null;
                    }
                }
            } catch (java.util.concurrent.ExecutionException notYetThere) {
                all = false;
            }
            if (all) {
                return;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not all partitions have a leader");
            }
            Thread.sleep(10);
        }
    }

    static String delete(Load.Options options) throws Exception {
        try (Admin admin = admin(options)) {
            admin.deleteTopics(List.of(options.text("topic").split(","))).all().get(SECONDS_MAX, TimeUnit.SECONDS);
        }
        return "done=1";
    }
}
