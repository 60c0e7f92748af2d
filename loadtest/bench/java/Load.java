import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * The load generator: one warm process that puts the same load on each broker that it is given.
 *
 * Reads one command a line from stdin, `verb name=value ...`, and answers each with one line on stdout: numbers as
 * `name=value ...`, or `error` and what went wrong. Ends at the end of stdin.
 */
public final class Load {
    private Load() {
    }

    /** What a command is given; an absent name without a default is an error in the caller. */
    static final class Options {
        private final Map<String, String> values = new HashMap<>();

        Options(String[] words) {
            for (int i = 1; i < words.length; i++) {
                String[] pair = words[i].split("=", 2);
                values.put(pair[0], pair[1]);
            }
        }

        String text(String name) {
            String value = values.get(name);
            if (value == null) {
                throw new IllegalArgumentException("no " + name);
            }
            return value;
        }

        String text(String name, String absent) {
            return values.getOrDefault(name, absent);
        }

        int number(String name) {
            return Integer.parseInt(text(name));
        }

        int number(String name, int absent) {
            return values.containsKey(name) ? number(name) : absent;
        }

        /** The configuration by which a client reaches the broker; `tls` is the certificate that it trusts. */
        Properties client() {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", text("bootstrap"));
            if (values.containsKey("tls")) {
                properties.put("security.protocol", "SSL");
                properties.put("ssl.truststore.type", "PEM");
                properties.put("ssl.truststore.location", text("tls"));
            }
            return properties;
        }
    }

    private static String run(String verb, Options options, Connections connections) throws Exception {
        switch (verb) {
            case "create":
                return Topics.create(options);
            case "delete":
                return Topics.delete(options);
            case "produce":
                return Produce.run(options);
            case "consume":
                return Consume.backlog(options);
            case "share":
                return Share.run(options);
            case "tail":
                return Consume.tail(options);
            case "latency":
                return Latency.run(options);
            case "open":
                return connections.open(options);
            case "loop":
                return connections.loop(options);
            case "close":
                return connections.close();
            default:
                throw new IllegalArgumentException("no verb " + verb);
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Kafka's perf tool prints its statistics; only answers may go to stdout.
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setErr(new Produce.Errors());
        Connections connections = new Connections();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" ");
            String answer;
            try {
                answer = run(words[0], new Options(words), connections);
            } catch (Exception failure) {
                answer = "error " + String.valueOf(failure).replaceAll("\\s+", " ");
            }
            answers.println(answer);
        }
        System.exit(0);
    }
}
