package org.apache.kafka.common.test.junit;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import kafka.server.KafkaBroker;
import korvet.broker.InProcessException;
import korvet.broker.OutsideBroker;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/** Comes before Kafka's class of this name on the class path: the cluster of a @ClusterTest is one outside broker. */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
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
            switch (method) {
                case "start":
                    start();
                    return null;
                case "stop":
                    OutsideBroker.stop();
                    stopped = true;
                    return null;
                case "started":
                    return started;
                case "stopped":
                    return stopped;
                case "type":
                    return combined ? Type.CO_KRAFT : Type.KRAFT;
                case "config":
                    return config;
                case "brokers":
                    return brokers();
                case "controllers":
                    return Map.of();
                case "controllerIds":
                    return Set.of();
                case "clientListener":
                    return config.brokerListenerName();
                case "controllerListenerName":
                    return config.controllerListenerName();
                case "bootstrapServers":
                    return OutsideBroker.bootstrap(config.brokerListenerName());
                case "supportedGroupProtocols":
                    return Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
                case "clusterId":
                    return OutsideBroker.clusterId();
                case "firstFatalException", "firstNonFatalException":
                    return Optional.empty();
                case "waitForReadyBrokers", "ensureConsistentMetadata", "waitAcls":
                    return null; // see HarnessPatch.utilities
                case "waitTopicCreation":
                    OutsideBroker.awaitTopic(call.getArgument(0), true);
                    return null;
                case "waitTopicDeletion":
                    OutsideBroker.awaitTopic(call.getArgument(0), false);
                    return null;
                case "authorizers", "controllerBoundPorts":
                    throw new InProcessException("ClusterInstance." + method);
                default:
                    if (call.getMethod().isDefault()) {
                        return call.callRealMethod();
                    }
                    throw new InProcessException("ClusterInstance." + method);
            }
        }

        private void start() throws Exception {
            if (!started) {
                OutsideBroker.start(
                        properties(0), config.brokerListenerName(), config.brokerSecurityProtocol(), test);
                started = true;
            }
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
