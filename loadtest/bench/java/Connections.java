import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Many plain connections in one thread, each with at most one request under way.
 *
 * Requests are whole frames made beforehand (one base64 text a line of a file). Connection i sends line i modulo their
 * number, again and again; with `walk` all connections together go through all lines. Of a response its size is
 * looked at, and where `error_at` says so the error code at that position.
 */
final class Connections {
    private static final long SILENCE_NANOS_MAX = TimeUnit.SECONDS.toNanos(60);

    private static final int HEAD_BYTES = 64;

    private final List<Client> clients = new ArrayList<>();
    private final ByteBuffer scratch = ByteBuffer.allocateDirect(1 << 16);
    private Selector selector;

    private static final class Client {
        private final SocketChannel channel;
        private int line;
        private final ByteBuffer size = ByteBuffer.allocate(4);
        private final byte[] head = new byte[HEAD_BYTES];
        private int headed;
        private long left = -1;

        Client(SocketChannel channel) {
            this.channel = channel;
        }

        void send(byte[] frame) throws IOException {
            ByteBuffer request = ByteBuffer.wrap(frame);
            channel.write(request);
            // More than fits into a socket goes when the broker has read some.
            for (long end = System.nanoTime() + SILENCE_NANOS_MAX; request.hasRemaining(); channel.write(request)) {
                if (System.nanoTime() > end) {
                    throw new IOException("the broker does not read a request");
                }
                Thread.yield();
            }
        }

        /** Refuses a response with an error code other than none; an error may be answered faster than the work. */
        void check(int errorAt) throws IOException {
            if (errorAt > 0 && (head[errorAt] != 0 || head[errorAt + 1] != 0)) {
                throw new IOException("a request was answered with error " + head[errorAt + 1]);
            }
        }

        /** Reads what is there; returns whether a response is complete. */
        boolean read(ByteBuffer scratch) throws IOException {
            while (true) {
                ByteBuffer into = size;
                if (left >= 0) {
                    scratch.clear().limit((int) Math.min(scratch.capacity(), left));
                    into = scratch;
                }
                int got = channel.read(into);
                if (got < 0) {
                    throw new EOFException("the broker closed a connection");
                }
                if (left >= 0) {
                    int kept = Math.min(got, HEAD_BYTES - headed);
                    scratch.flip().get(head, headed, kept);
                    headed += kept;
                    left -= got;
                } else if (!size.hasRemaining()) {
                    left = size.getInt(0);
                    size.clear();
                    headed = 0;
                }
                if (left == 0) {
                    left = -1;
                    return true;
                }
                if (got == 0) {
                    return false;
                }
            }
        }
    }

    private static List<byte[]> frames(Load.Options options) throws IOException {
        List<byte[]> frames = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(options.text("frames")))) {
            frames.add(Base64.getDecoder().decode(line));
        }
        return frames;
    }

    /** Opens connections and has one request answered on each; they stay open until close(). */
    String open(Load.Options options) throws IOException {
        String[] address = options.text("bootstrap").split(":");
        selector = Selector.open();
        long start = System.nanoTime();
        for (int i = 0; i < options.number("connections"); i++) {
            SocketChannel channel =
                SocketChannel.open(new InetSocketAddress(address[0], Integer.parseInt(address[1])));
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            channel.configureBlocking(false);
            Client client = new Client(channel);
            channel.register(selector, SelectionKey.OP_READ, client);
            clients.add(client);
        }
        long answered = exchange(frames(options), 0, 0, 0);
        return String.format("connections=%d seconds=%.6f", answered, (System.nanoTime() - start) / 1e9);
    }

    /** Has each connection send its next request as soon as one is answered, for a time. */
    String loop(Load.Options options) throws IOException {
        long start = System.nanoTime();
        long answered = exchange(frames(options),
            TimeUnit.MILLISECONDS.toNanos(options.number("milliseconds")), options.number("error_at", 0),
            options.number("walk", 0) * clients.size());
        return String.format("requests=%d seconds=%.6f", answered, (System.nanoTime() - start) / 1e9);
    }

    private long exchange(List<byte[]> frames, long nanos, int errorAt, int step) throws IOException {
        long answered = 0;
        int waiting = 0;
        for (int i = 0; i < clients.size(); i++) {
            Client client = clients.get(i);
            client.line = i % frames.size();
            client.send(frames.get(client.line));
            waiting++;
        }
        long end = System.nanoTime() + nanos;
        long heard = System.nanoTime();
        while (waiting > 0) {
            selector.select(1000);
            long now = System.nanoTime();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                Client client = (Client) key.attachment();
                if (client.read(scratch)) {
                    client.check(errorAt);
                    answered++;
                    heard = now;
                    if (now < end) {
                        client.line = (client.line + step) % frames.size();
                        client.send(frames.get(client.line));
                    } else {
                        waiting--;
                    }
                }
            }
            if (now - heard > SILENCE_NANOS_MAX) {
                throw new IOException(waiting + " requests were not answered");
            }
        }
        return answered;
    }

    String close() throws IOException {
        for (Client client : clients) {
            client.channel.close();
        }
        clients.clear();
        if (selector != null) {
            selector.close();
        }
        return "done=1";
    }
}
