package korvet.broker;

import java.util.List;
import javassist.*;

/**
 * Writes copies of Kafka's test harness into a folder whose methods ask {@link OutsideBroker}, not a broker in the same
 * process: java korvet.broker.HarnessPatch FOLDER. The classes of tests stay as they are.
 *
 * Bodies are javassist's Java, where $0 is `this`, and $1 the first parameter.
 */
public final class HarnessPatch {
    private static final String OUTSIDE = "korvet.broker.OutsideBroker";
    private static final String NOTHING = "{}";

    private HarnessPatch() {}

    public static void main(String[] arguments) throws Exception {
        for (CtClass patched : List.of(utilities(), controllers(), brokers(), requests(), groups())) {
            patched.writeFile(arguments[0]);
        }
    }

    private static CtClass utilities() throws Exception {
        CtClass utilities = read("kafka.utils.TestUtils$");
        replace(utilities, call("bootstrap($2)"), "bootstrapServers");
        replace(utilities, call("bootstrap()"), "plaintextBootstrapServers");
        // Kafka's own topics; no partition of them is looked at.
        replace(utilities, call("leaders(\"\", 0)"),
                "createOffsetsTopicWithAdmin", "createTransactionStateTopicWithAdmin");
        replace(utilities, call("leaders($2, $3)"), "waitForAllPartitionsMetadata");
        replace(utilities, call("leader()"), "waitForPartitionMetadata");
        replace(utilities, call("acls()"), "pickAuthorizerForWrite");
        // Kafka's tests wait until each broker knows what one has answered. Korvet's workers know it by then.
        replace(utilities, NOTHING,
                "ensureConsistentKRaftMetadata", "waitUntilBrokerMetadataIsPropagated", "verifyTopicDeletion",
                "waitForOnlineBroker", "waitAndVerifyAcls", "shutdownServers");
        return utilities;
    }

    private static CtClass controllers() throws Exception {
        CtClass quorum = read("kafka.server.QuorumTestHarness");
        replace(quorum, "{ $0.testInfo = $1; " + OUTSIDE + ".name($1); }", "setUp");
        replace(quorum, run("stop()"), "tearDown");
        replace(quorum, "return null;", "controllerServer");
        replace(quorum, "return scala.collection.immutable.Nil$.MODULE$;", "controllerServers");
        replace(quorum, call("broker($1)"), "createBroker");
        replace(quorum, NOTHING, "verifyNoUnexpectedThreads");
        return quorum;
    }

    private static CtClass brokers() throws Exception {
        CtClass harness = read("kafka.integration.KafkaServerTestHarness");
        replace(harness,
                "{ " + OUTSIDE + ".start($0.configs());"
                        + "$0.alive_$eq(new boolean[$0.configs().size()]);"
                        + "for (int i = 0; i < $0.configs().size(); i++) {"
                        + "  $0._brokers().addOne(" + OUTSIDE + ".broker((kafka.server.KafkaConfig) $0.configs().apply(i)));"
                        + "  $0.alive()[i] = true;"
                        + "} }",
                "createBrokers");
        replace(harness, run("stop()"), "tearDown");
        replace(harness, call("bootstrap($1)"), "bootstrapServers");
        replace(harness, NOTHING,
                "createOffsetsTopic", "ensureConsistentKRaftMetadata", "waitForUserScramCredentialToAppearOnAllBrokers");
        replace(harness, run("addAcls($1, $2)"), "addAndVerifyAcls");
        replace(harness, run("removeAcls($1, $2)"), "removeAndVerifyAcls");
        replace(harness, call("topicIdsByName()"), "getTopicIds");
        replace(harness, call("topicNamesById()"), "getTopicNames");
        for (String method : List.of("killBroker", "killRandomBroker", "startBroker", "restartDeadBrokers")) {
            replace(harness, "throw " + OUTSIDE + ".inProcess(\"" + method + "\");", method);
        }
        for (CtMethod method : harness.getDeclaredMethods("createTopic")) {
            // Two replicas in sync, of the three brokers that the test wants: the one broker cannot have them.
            method.insertBefore("$4.remove(\"min.insync.replicas\");");
        }
        return harness;
    }

    private static CtClass requests() throws Exception {
        CtClass requests = read("kafka.server.BaseRequestTest");
        replace(requests, call("sockets()"), "controllerSocketServer");
        return requests;
    }

    private static CtClass groups() throws Exception {
        CtClass groups = read("kafka.server.GroupCoordinatorBaseRequestTest");
        replace(groups, call("topicIds()"), "getTopicIds");
        return groups;
    }

    private static String call(String method) {
        return "return " + OUTSIDE + "." + method + ";";
    }

    private static String run(String method) {
        return "{ " + OUTSIDE + "." + method + "; }";
    }

    private static CtClass read(String name) throws Exception {
        return ClassPool.getDefault().get(name);
    }

    private static void replace(CtClass owner, String body, String... names) throws Exception {
        for (String name : names) {
            CtMethod[] methods = owner.getDeclaredMethods(name);
            if (methods.length == 0) {
                throw new IllegalStateException(owner.getName() + "." + name + " is not in this version of Kafka");
            }
            for (CtMethod method : methods) {
                if (!Modifier.isAbstract(method.getModifiers())) {
                    method.setBody(body);
                }
            }
        }
    }
}
