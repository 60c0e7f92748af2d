package korvet.broker;

import java.io.IOException;
import java.net.InetAddress;
import java.util.*;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import kafka.network.SocketServer;
import kafka.server.BrokerServer;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.security.auth.KafkaPrincipalBuilder;
import org.apache.kafka.common.security.auth.PlaintextAuthenticationContext;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.server.authorizer.AclCreateResult;
import org.apache.kafka.server.authorizer.AclDeleteResult;
import org.apache.kafka.server.authorizer.AclDeleteResult.AclBindingDeleteResult;
import org.apache.kafka.server.authorizer.Authorizer;
import org.junit.jupiter.api.TestInfo;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import scala.Option;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The broker of the running test. The patched harness calls it in the place of brokers in this process. */
public final class OutsideBroker {
    private static final long TOPIC_NANOS_MAX = 15_000_000_000L;

    private static String test = "";
    private static KafkaConfig config;
    private static BrokerProcess process;

    private OutsideBroker() {}

    /** The name of a KafkaServerTestHarness's test, for the broker's log. */
    public static void name(TestInfo info) {
        test = info.getTestClass().map(Class::getSimpleName).orElse("") + "." + info.getDisplayName();
    }

    /** Starts the broker of a KafkaServerTestHarness: the first of those that it wants. */
    public static void start(Seq<KafkaConfig> configs) throws Exception {
        Map<String, String> properties = new HashMap<>();
        configs.apply(0).originals().forEach((name, value) -> properties.put(name, String.valueOf(value)));
        start(configs.apply(0), properties);
    }

    /** Starts the broker of a ClusterInstance. */
    public static void start(
            Map<String, String> properties, ListenerName listener, SecurityProtocol protocol, String name)
            throws Exception {
        test = name;
        Map<String, String> all = new HashMap<>(properties);
        if (protocol == SecurityProtocol.SASL_PLAINTEXT) {
            all.putIfAbsent("super.users", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN);
        }
        start(config(properties, 0, listener, protocol), all);
    }

    private static void start(KafkaConfig wanted, Map<String, String> properties) throws Exception {
        stop();
        config = wanted;
        // A command-line tool that fails must not end the JVM.
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("the tool exits with " + status + ": " + message);
        });
        if (!properties.getOrDefault("authorizer.class.name", "").endsWith(".StandardAuthorizer")) {
            properties.remove("authorizer.class.name");
        }
        List<BrokerProcess.Listener> listeners = new ArrayList<>();
        for (Endpoint endpoint : CollectionConverters.asJava(config.effectiveAdvertisedBrokerListeners())) {
            SecurityProtocol protocol = endpoint.securityProtocol();
            if (protocol == SecurityProtocol.SSL || protocol == SecurityProtocol.SASL_SSL) {
                throw new InProcessException("TLS by Java's key stores");
            }
            listeners.add(new BrokerProcess.Listener(endpoint.listener(), protocol, user(endpoint)));
        }
        process = new BrokerProcess(config.brokerId(), listeners, properties, test);
        process.awaitStart();
    }

    /** The user that the test's own principal builder gives to clients of a PLAINTEXT listener; null if anonymous. */
    private static String user(Endpoint endpoint) throws Exception {
        Object builder = config.originals().get("principal.builder.class");
        if (builder == null || endpoint.securityProtocol() != SecurityProtocol.PLAINTEXT) {
            return null;
        }
        String name = Class.forName(builder.toString())
                .asSubclass(KafkaPrincipalBuilder.class)
                .getDeclaredConstructor()
                .newInstance()
                .build(new PlaintextAuthenticationContext(InetAddress.getLoopbackAddress(), endpoint.listener()))
                .getName();
        return name.equals("ANONYMOUS") ? null : name;
    }

    public static void stop() throws IOException {
        if (process != null) {
            process.close();
            process = null;
        }
    }

    /** The config of a broker, from the properties of a ClusterConfig. */
    public static KafkaConfig config(
            Map<String, String> properties, int id, ListenerName listener, SecurityProtocol protocol) {
        Properties all = new Properties();
        all.putAll(properties);
        all.putAll(Map.of(
                "process.roles", "broker",
                "node.id", String.valueOf(id),
                "controller.quorum.voters", "3000@localhost:1",
                "controller.listener.names", "CONTROLLER",
                "listeners", listener.value() + "://localhost:0",
                "listener.security.protocol.map", listener.value() + ":" + protocol + ",CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name", listener.value()));
        if (protocol == SecurityProtocol.SASL_PLAINTEXT) {
            all.putAll(Map.of(
                    "sasl.mechanism", "PLAIN",
                    "sasl.mechanism.inter.broker.protocol", "PLAIN",
                    "sasl.enabled.mechanisms", "PLAIN"));
        }
        return KafkaConfig.fromProps(all);
    }

    /** What tests take for a broker in their process: it knows its config, its ports and its ACLs. */
    public static KafkaBroker broker(KafkaConfig config) {
        return Mockito.mock(BrokerServer.class, call -> answer(call, config));
    }

    /** Stands for the sockets of a controller too, as Korvet serves its requests. */
    public static SocketServer sockets() {
        return Mockito.mock(SocketServer.class, call -> answer(call, config));
    }

    private static Object answer(InvocationOnMock call, KafkaConfig config) throws Throwable {
        String method = call.getMethod().getName();
        return switch (method) {
            case "config" -> config;
            case "boundPort" -> port(call.getArgument(0));
            case "socketServer" -> sockets();
            case "clusterId" -> clusterId();
            case "authorizerPlugin" -> Option.apply(Plugin.wrapInstance(acls(), null, "authorizer.class.name"));
            case "brokerState" -> BrokerState.RUNNING;
            case "startup", "shutdown", "awaitShutdown" -> null;
            case "isShutdown" -> false;
            case "toString", "hashCode", "equals" -> Mockito.RETURNS_DEFAULTS.answer(call);
            default -> throw inProcess(call.getMethod().getDeclaringClass().getSimpleName() + "." + method);
        };
    }

    /** An exception that patched bodies throw, which cannot name its class. */
    public static RuntimeException inProcess(String what) {
        return new InProcessException(what);
    }

    static int port(ListenerName listener) {
        return process.port(listener.value());
    }

    public static String bootstrap(ListenerName listener) {
        return "localhost:" + port(listener);
    }

    /** The address for brokers, whose user may do everything. */
    public static String bootstrap() {
        return bootstrap(config.interBrokerListenerName());
    }

    interface Question<T> {
        KafkaFuture<T> ask(Admin admin);
    }

    static <T> T ask(Question<T> question) {
        Map<String, Object> configs = new TreeMap<>(Map.of("bootstrap.servers", bootstrap()));
        if (config.interBrokerSecurityProtocol() == SecurityProtocol.SASL_PLAINTEXT) {
            configs.put("security.protocol", "SASL_PLAINTEXT");
            configs.put("sasl.mechanism", "PLAIN");
            configs.put("sasl.jaas.config", String.format(
                    "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"%s\" password=\"%s\";",
                    JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD));
        }
        try (Admin admin = Admin.create(configs)) {
            return question.ask(admin).get();
        } catch (ExecutionException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static String clusterId() {
        return ask(admin -> admin.describeCluster().clusterId());
    }

    public static Map<String, Uuid> topicIds() {
        return ask(admin -> admin.listTopics(new ListTopicsOptions().listInternal(true)).listings()).stream()
                .collect(Collectors.toMap(TopicListing::name, TopicListing::topicId));
    }

    public static scala.collection.immutable.Map<String, Uuid> topicIdsByName() {
        return scala(topicIds());
    }

    public static scala.collection.immutable.Map<Uuid, String> topicNamesById() {
        return scala(topicIds().entrySet().stream().collect(Collectors.toMap(Map.Entry::getValue, Map.Entry::getKey)));
    }

    private static <K, V> scala.collection.immutable.Map<K, V> scala(Map<K, V> map) {
        return scala.collection.immutable.Map.from(CollectionConverters.asScala(map));
    }

    /** Waits for the end of a creation or a deletion whose request is under way. */
    public static Void awaitTopic(String topic, boolean exists) throws InterruptedException {
        long end = System.nanoTime() + TOPIC_NANOS_MAX;
        while (topicIds().containsKey(topic) != exists) {
            if (System.nanoTime() > end) {
                throw new AssertionError("topic " + topic + (exists ? " does not exist" : " still exists"));
            }
            Thread.sleep(20);
        }
        return null;
    }

    /** The one broker leads each partition. */
    public static LeaderAndIsr leader() {
        return new LeaderAndIsr(config.brokerId(), List.of(config.brokerId()));
    }

    public static scala.collection.immutable.Map<TopicPartition, LeaderAndIsr> leaders(String topic, int partitions) {
        return scala(IntStream.range(0, partitions)
                .boxed()
                .collect(Collectors.toMap(partition -> new TopicPartition(topic, partition), partition -> leader())));
    }

    /** The broker's authorizer, as far as tests change and list ACLs by it: by requests. */
    public static Authorizer acls() {
        return Mockito.mock(Authorizer.class, call -> switch (call.getMethod().getName()) {
            case "createAcls" -> created(call.getArgument(1));
            case "deleteAcls" -> deleted(call.getArgument(1));
            case "acls" -> ask(admin -> admin.describeAcls(call.getArgument(0)).values());
            case "configure", "close" -> null;
            default -> throw inProcess("Authorizer." + call.getMethod().getName());
        });
    }

    private static List<CompletionStage<AclCreateResult>> created(List<AclBinding> acls) {
        ask(admin -> admin.createAcls(acls).all());
        return Collections.nCopies(acls.size(), CompletableFuture.completedStage(AclCreateResult.SUCCESS));
    }

    private static List<CompletionStage<AclDeleteResult>> deleted(List<AclBindingFilter> filters) {
        return filters.stream()
                .map(filter -> ask(admin -> admin.deleteAcls(List.of(filter)).all()))
                .map(acls -> new AclDeleteResult(acls.stream().map(AclBindingDeleteResult::new).toList()))
                .map(CompletableFuture::completedStage)
                .toList();
    }

    public static void addAcls(scala.collection.immutable.Set<AccessControlEntry> entries, ResourcePattern resource) {
        created(bindings(entries, resource));
    }

    public static void removeAcls(
            scala.collection.immutable.Set<AccessControlEntry> entries, ResourcePattern resource) {
        deleted(bindings(entries, resource).stream().map(AclBinding::toFilter).toList());
    }

    private static List<AclBinding> bindings(
            scala.collection.immutable.Set<AccessControlEntry> entries, ResourcePattern resource) {
        return CollectionConverters.asJava(entries).stream().map(entry -> new AclBinding(resource, entry)).toList();
    }
}
