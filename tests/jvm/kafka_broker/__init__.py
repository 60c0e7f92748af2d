"""Apache Kafka's own broker tests, run against Korvet: `make test-kafka-broker`.

Kafka publishes its compiled tests. Many send single requests to a broker, and compare whole responses over all versions
of the request. They start their brokers in the JVM of the test; here a `korvet serve` takes their place, a new one with
an empty log for each test. The classes of the tests stay as they are. Two parts of Kafka's harness are replaced:

- The cluster of a `@ClusterTest` (RaftClusterInvocationContext): java/ has a class of the same name, which comes first
  on the class path.
- KafkaServerTestHarness, QuorumTestHarness and their utilities: HarnessPatch writes copies of them with other bodies
  for the methods that start, stop or ask a broker.

Both use OutsideBroker, which passes on the properties of a test if they are settings of Korvet. A test asking for
anything else of the broker's process gets an InProcessException, and counts as `outside`.

classes.txt has the classes that say something about an outside broker. Not those about TLS by Java's key stores,
Kerberos, quotas' sensors, log directories, tiered storage, controllers, or several brokers of which one stops.
The other lists name tests of these classes (see lists.py).
"""
