// Logs in by kafkajs, writes a record and reads it: BOOTSTRAP TOPIC MECHANISM USER SECRET.
import kafkajs from "kafkajs";

const [bootstrap, topic, mechanism, username, secret] = process.argv.slice(2);
const sasl =
  mechanism === "OAUTHBEARER"
    ? { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: secret }) }
    : { mechanism: mechanism.toLowerCase(), username, password: secret };
const client = new kafkajs.Kafka({
  brokers: [bootstrap],
  sasl,
  retry: { retries: 3 },
  logLevel: kafkajs.logLevel.NOTHING,
});
const producer = client.producer();
const consumer = client.consumer({ groupId: `of-${topic}` });
try {
  await producer.connect();
  await producer.send({ topic, messages: [{ value: `by ${mechanism}` }] });
  await producer.disconnect();
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const value = await new Promise((resolve) =>
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }),
  );
  console.log(value);
  await consumer.disconnect();
} catch (error) {
  console.log(`failed ${error.name}: ${error.message}`);
  process.exit(1);
}
