package org.apache.kafka.common.test.junit;

import java.io.IOException;
import java.util.*;
import kafka.server.KafkaBroker;
import korvet.broker.InProcessException;
import korvet.broker.OutsideBroker;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.junit.jupiter.api.extension.*;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/** Comes before Kafka's class of this name on the class path: the cluster of a @ClusterTest is one outside broker. */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private static final Set<String> IN_PROCESS = Set.of("authorizers", "controllerBoundPorts");

    private final String name;
    private final ClusterConfig config;
    private final boolean combined;

    public RaftClusterInvocationContext(String name, ClusterConfig config, boolean combined) {
        this.name = name;
        this.config = config;
        this.combined = combined;
    }

    @Override
    public String getDisplayName(int invocation) {
        return name + " [" + invocation + "]";
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        Cluster cluster = new Cluster();
        boolean again = combined && config.clusterTypes().size() > 1;
        ExecutionCondition once = context -> again
                ? ConditionEvaluationResult.disabled("the same test as with controllers in processes of their own")
                : ConditionEvaluationResult.enabled("");
        BeforeEachCallback begin = context -> {
            cluster.test = context.getRequiredTestClass().getSimpleName() + "."
                    + context.getRequiredTestMethod().getName();
            if (config.isAutoStart()) {
                cluster.start();
            }
        };
        AfterEachCallback end = context -> OutsideBroker.stop();
        ClusterInstance instance = Mockito.mock(ClusterInstance.class, cluster::answer);
        return List.of(once, begin, end, new ClusterInstanceParameterResolver(instance));
    }

    /** Answers the calls of a test to its ClusterInstance. */
    private final class Cluster {
        private String test = "";
        private Map<Integer, KafkaBroker> brokers;
        private boolean started;
        private boolean stopped;

        Object answer(InvocationOnMock call) throws Throwable {
            String method = call.getMethod().getName();
            return switch (method) {
                case "start" -> start();
                case "stop" -> stop();
                case "started" -> started;
                case "stopped" -> stopped;
                case "type" -> combined ? Type.CO_KRAFT : Type.KRAFT;
                case "config" -> config;
                case "brokers" -> brokers();
                case "controllers" -> Map.of();
                case "controllerIds" -> Set.of();
                case "clientListener" -> config.brokerListenerName();
                case "controllerListenerName" -> config.controllerListenerName();
                case "bootstrapServers" -> OutsideBroker.bootstrap(config.brokerListenerName());
                case "supportedGroupProtocols" -> Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
                case "clusterId" -> OutsideBroker.clusterId();
                case "firstFatalException", "firstNonFatalException" -> Optional.empty();
                // As in HarnessPatch.utilities.
                case "waitForReadyBrokers", "ensureConsistentMetadata", "waitAcls" -> null;
                case "waitTopicCreation" -> OutsideBroker.awaitTopic(call.getArgument(0), true);
                case "waitTopicDeletion" -> OutsideBroker.awaitTopic(call.getArgument(0), false);
                default -> {
                    if (!call.getMethod().isDefault() || IN_PROCESS.contains(method)) {
                        throw new InProcessException("ClusterInstance." + method);
                    }
                    yield call.callRealMethod();
                }
            };
        }

        private Void start() throws Exception {
            if (!started) {
                OutsideBroker.start(
                        properties(0), config.brokerListenerName(), config.brokerSecurityProtocol(), test);
                started = true;
            }
            return null;
        }

        private Void stop() throws IOException {
            OutsideBroker.stop();
            stopped = true;
            return null;
        }

        private Map<Integer, KafkaBroker> brokers() {
            if (brokers == null) {
                brokers = new TreeMap<>();
                for (int id = 0; id < config.numBrokers(); id++) {
                    brokers.put(id, OutsideBroker.broker(OutsideBroker.config(
                            properties(id), id, config.brokerListenerName(), config.brokerSecurityProtocol())));
                }
            }
            return brokers;
        }

        private Map<String, String> properties(int broker) {
            Map<String, String> properties = new HashMap<>(config.serverProperties());
            properties.putAll(config.perServerOverrideProperties().getOrDefault(broker, Map.of()));
            return properties;
        }
    }
}
