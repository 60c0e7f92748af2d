package korvet.broker;

import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.message.SaslAuthenticateRequestData;
import org.apache.kafka.common.message.SaslHandshakeRequestData;
import org.apache.kafka.common.requests.*;

/**
 * A port that logs its clients in as one user, by SASL/PLAIN at the broker, and then passes bytes in both directions.
 *
 * Kafka's tests of ACLs name the user of a PLAINTEXT listener by a Java class (principal.builder.class), which an
 * outside broker cannot load.
 */
final class UserPort implements Closeable {
    private static final short SASL_VERSION = 1;
    private static final int BACKLOG = 50;

    private final ServerSocket server;
    private final int brokerPort;
    private final String user;
    private final String password;
    private final Set<Socket> open = ConcurrentHashMap.newKeySet();

    UserPort(int port, int brokerPort, String user, String password) throws IOException {
        this.server = new ServerSocket(port, BACKLOG, InetAddress.getByName("127.0.0.1"));
        this.brokerPort = brokerPort;
        this.user = user;
        this.password = password;
        background(() -> {
            while (true) {
                Socket client = server.accept();
                open.add(client);
                background(() -> connect(client));
            }
        });
    }

    private void connect(Socket client) throws IOException {
        try (client; Socket broker = new Socket("127.0.0.1", brokerPort)) {
            open.add(broker);
            client.setTcpNoDelay(true);
            broker.setTcpNoDelay(true);
            logIn(broker);
            background(() -> pass(broker, client));
            pass(client, broker);
        } finally {
            open.remove(client);
        }
    }

    private void logIn(Socket broker) throws IOException {
        byte[] secret = ("\0" + user + "\0" + password).getBytes(StandardCharsets.UTF_8);
        List<AbstractRequest> requests = List.of(
                new SaslHandshakeRequest(new SaslHandshakeRequestData().setMechanism("PLAIN"), SASL_VERSION),
                new SaslAuthenticateRequest(new SaslAuthenticateRequestData().setAuthBytes(secret), SASL_VERSION));
        DataOutputStream out = new DataOutputStream(broker.getOutputStream());
        DataInputStream in = new DataInputStream(broker.getInputStream());
        for (AbstractRequest request : requests) {
            ByteBuffer frame =
                    request.serializeWithHeader(new RequestHeader(request.apiKey(), SASL_VERSION, "user-port", 0));
            out.writeInt(frame.remaining());
            out.write(frame.array(), frame.arrayOffset(), frame.remaining());
            out.flush();
            ByteBuffer response = ByteBuffer.wrap(in.readNBytes(in.readInt()));
            short error = response.getShort(Integer.BYTES); // behind the correlation id
            if (error != 0) {
                throw new IOException("the login of " + user + " fails with error " + error);
            }
        }
    }

    private static void pass(Socket from, Socket to) throws IOException {
        try (from; to) {
            from.getInputStream().transferTo(to.getOutputStream());
        }
    }

    @Override
    public void close() throws IOException {
        server.close();
        for (Socket socket : open) {
            socket.close();
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void background(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (SocketException error) {
                // A peer closed its connection, or the test is over.
            } catch (IOException error) {
                System.err.println("user port: " + error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
