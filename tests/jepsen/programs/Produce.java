import java.util.Properties;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own idempotent producer, as programs/__init__.py says. */
public final class Produce {
    private static volatile boolean going = true;

    private Produce() {}

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int partitions = Integer.parseInt(args[2]);
        String name = args[3];
        int count = Integer.parseInt(args[4]);
        int pause = Integer.parseInt(args[5]);
        boolean single = args[6].equals("single");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        settings.put("linger.ms", single ? "0" : "2");
        settings.put("batch.size", single ? "1" : "16384");
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", "180000");
        settings.put("max.block.ms", "180000");
        settings.put("retry.backoff.ms", "20");
        settings.put("reconnect.backoff.ms", "20");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "5000");
        Lines.whenStdinEnds(() -> going = false);
        Semaphore window = new Semaphore(200);
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        for (int next = 0; going && (count == 0 || next < count); next++) {
            int number = next;
            int partition = number % partitions;
            window.acquire();
            Lines.write("sent " + partition + " " + number);
            producer.send(new ProducerRecord<>(topic, partition, null, name + "/" + number), (metadata, error) -> {
                window.release();
                if (error == null) {
                    Lines.write("acknowledged " + partition + " " + number + " " + metadata.offset());
                } else {
                    going = false;
                    Lines.write("failed " + error);
                }
            });
            if (pause > 0 && number % 10 == 9) {
                Thread.sleep(pause);
            }
        }
        producer.flush();
        Runtime.getRuntime().halt(0);
    }
}
