package korvet.broker;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.test.JaasUtils;

/** A `korvet serve` with one worker, its embedded Redis and an empty log, for one test. */
final class BrokerProcess implements Closeable {
    private static final String PYTHON = System.getProperty("korvet.python");
    private static final String[] LAYOUT = System.getProperty("korvet.layout").split(",");
    private static final Path DATA = Path.of(System.getProperty("java.io.tmpdir"));
    private static final Path LOGS = Path.of(System.getProperty("korvet.logs"));
    private static final Set<String> SETTINGS = Set.of(System.getProperty("korvet.settings").split(","));
    // The three brokers of a test have ids of their own, and replicas; the one broker has neither.
    private static final Set<String> NOT_PASSED_ON = Set.of("broker.id", "min.insync.replicas");

    private static final int START_SECONDS_MAX = 120;
    private static final int STOP_SECONDS_MAX = 10;
    // Below the ports of clients, as the port of a closed connection stays in use for a minute. JVMs at the same time
    // have ranges of their own.
    private static final int PORTS = 400;
    private static final int FIRST_PORT = 20_000 + (int) (ProcessHandle.current().pid() % 30) * PORTS;

    /**
     * A listener that a test wants.
     *
     * @param user the user that the broker must see on this PLAINTEXT listener; null for User:ANONYMOUS
     */
    record Listener(String name, SecurityProtocol protocol, String user) {
        /** A user needs a login: see {@link UserPort}. */
        SecurityProtocol protocolOfBroker() {
            return user == null ? protocol : SecurityProtocol.SASL_PLAINTEXT;
        }
    }

    private static final Map<String, String> USERS = Map.of(
            JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD,
            JaasUtils.KAFKA_PLAIN_USER1, JaasUtils.KAFKA_PLAIN_USER1_PASSWORD,
            "plain-user", "plain-user-secret", // these two of classes that no public constant names
            "plain-user2", "plain-user2-secret");

    private static int count = 0;
    private static int nextPort = FIRST_PORT;

    private final Path data;
    private final Path log;
    private final List<UserPort> userPorts = new ArrayList<>();
    private final List<Integer> brokerPorts = new ArrayList<>();
    private final Map<String, Integer> clientPorts = new HashMap<>();
    private final Process process;

    /** Starts the broker; of the test's properties it gets those that are settings of Korvet. */
    BrokerProcess(int id, List<Listener> listeners, Map<String, String> properties, String test) throws IOException {
        count++;
        data = Files.createDirectories(DATA.resolve("data-" + count));
        log = LOGS.resolve("broker-" + count + ".log");
        List<String> command = new ArrayList<>(List.of(PYTHON, "-m", "korvet", "serve"));
        command.addAll(List.of("--workers", "1", "--ops-listen", "", "--broker-id", String.valueOf(id)));
        command.addAll(List.of("--data-dir", data.toString()));
        settings(listeners, properties).forEach((name, value) -> command.addAll(List.of("--set", name + "=" + value)));
        Files.writeString(log, String.join("\n", test, String.join(" ", command), properties.toString(), ""));
        process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()))
                .redirectInput(new File("/dev/null"))
                .start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroy));
    }

    private Map<String, String> settings(List<Listener> listeners, Map<String, String> properties) throws IOException {
        Map<String, String> settings = new TreeMap<>(properties);
        settings.keySet().removeIf(name -> !SETTINGS.contains(name) || NOT_PASSED_ON.contains(name)
                || name.contains("listener") || name.startsWith("ssl.") || name.startsWith("sasl."));
        settings.putIfAbsent("group.initial.rebalance.delay.ms", "0");
        for (String setting : LAYOUT) {
            settings.put(setting.split("=")[0], setting.split("=")[1]);
        }
        settings.put("topic.reserved.names", "");

        Map<String, String> users = new TreeMap<>(USERS);
        List<String> bound = new ArrayList<>();
        List<String> advertised = new ArrayList<>();
        List<String> protocols = new ArrayList<>();
        for (Listener listener : listeners) {
            int port = freePort();
            int clientPort = port;
            if (listener.user() != null) {
                clientPort = freePort();
                String password = users.computeIfAbsent(listener.user(), user -> user + "-secret");
                userPorts.add(new UserPort(clientPort, port, listener.user(), password));
            }
            brokerPorts.add(port);
            clientPorts.put(listener.name(), clientPort);
            bound.add(listener.name() + "://127.0.0.1:" + port);
            advertised.add(listener.name() + "://localhost:" + clientPort);
            protocols.add(listener.name() + ":" + listener.protocolOfBroker());
        }
        settings.put("listeners", String.join(",", bound));
        settings.put("advertised.listeners", String.join(",", advertised));
        settings.put("listener.security.protocol.map", String.join(",", protocols));
        if (listeners.stream().anyMatch(it -> it.protocolOfBroker() == SecurityProtocol.SASL_PLAINTEXT)) {
            settings.put("sasl.enabled.mechanisms", "PLAIN");
            settings.put("sasl.plain.users.file", usersFile(users).toString());
        }
        return settings;
    }

    private Path usersFile(Map<String, String> users) throws IOException {
        String lines = users.entrySet().stream()
                .map(user -> "\"" + user.getKey() + "\" = \"" + user.getValue() + "\"\n")
                .collect(Collectors.joining());
        Path file = Files.writeString(data.resolve("users.toml"), lines);
        return Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    }

    void awaitStart() throws IOException, InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS_MAX);
        for (int port : brokerPorts) {
            while (!accepts(port)) {
                if (!process.isAlive() || System.nanoTime() > end) {
                    List<String> lines = Files.readAllLines(log);
                    throw new IllegalStateException("Korvet did not start: " + lines.get(lines.size() - 1));
                }
                Thread.sleep(20);
            }
        }
    }

    private static boolean accepts(int port) {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    private static int freePort() {
        for (int tries = 0; tries < PORTS; tries++) {
            int port = nextPort;
            nextPort = FIRST_PORT + (port - FIRST_PORT + 1) % PORTS;
            try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getByName("127.0.0.1"))) {
                return port;
            } catch (IOException error) {
                // Another process uses it.
            }
        }
        throw new IllegalStateException("no port is free from " + FIRST_PORT + " on");
    }

    /** The port of the listener's clients; of any listener if the broker has none of that name. */
    int port(String listener) {
        return clientPorts.getOrDefault(listener, clientPorts.values().iterator().next());
    }

    @Override
    public void close() throws IOException {
        for (UserPort port : userPorts) {
            port.close();
        }
        List<ProcessHandle> children = process.descendants().toList();
        process.destroy();
        try {
            if (!process.waitFor(STOP_SECONDS_MAX, TimeUnit.SECONDS)) {
                children.forEach(ProcessHandle::destroyForcibly);
                process.destroyForcibly().waitFor();
            }
        } catch (InterruptedException error) {
            process.destroyForcibly();
        }
        try (Stream<Path> paths = Files.walk(data)) {
            paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }
}
