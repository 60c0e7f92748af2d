// Copies records from topic to topic in transactions, by kafkajs, as tests/jepsen/programs/transact does by others:
// kafkajs BOOTSTRAP FROM TO. Goes on until it is killed.
import kafkajs from "kafkajs";

const [, bootstrap, from, to] = process.argv.slice(2);
const perTransaction = 20;
const client = new kafkajs.Kafka({ brokers: [bootstrap], logLevel: kafkajs.logLevel.ERROR });
const producer = client.producer({ transactionalId: from, idempotent: true, maxInFlightRequests: 1 });
const consumer = client.consumer({ groupId: from, sessionTimeout: 6000, heartbeatInterval: 1000 });
await producer.connect();
await consumer.connect();
await consumer.subscribe({ topic: from, fromBeginning: true });
await consumer.run({
  autoCommit: false,
  eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
    for (let at = 0; at < batch.messages.length; at += perTransaction) {
      const found = batch.messages.slice(at, at + perTransaction);
      const last = found[found.length - 1].offset;
      const transaction = await producer.transaction();
      try {
        const messages = found.map(({ value }) => ({ value, partition: batch.partition }));
        await transaction.send({ topic: to, messages });
        const partitions = [{ partition: batch.partition, offset: (BigInt(last) + 1n).toString() }];
        await transaction.sendOffsets({ consumerGroupId: from, topics: [{ topic: from, partitions }] });
        await transaction.commit();
        console.log("committed");
      } catch (error) {
        console.log(`aborted ${error.message}`);
        await transaction.abort();
        throw error;
      }
      resolveOffset(last);
      await heartbeat();
    }
  },
});
