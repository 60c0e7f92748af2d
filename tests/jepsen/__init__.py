"""A checker in the manner of Jepsen's Kafka tests: clients at work, faults at random, and a history that must hold.

history   what clients did and saw, as they saw it
checker   what must never be in a history; knows nothing of brokers
clients   producers, readers, a group and committed offsets: librdkafka and kafka-python
programs  producers of other libraries, Java's consumers and transactions, as programs; program_clients has them work
transaction_clients  writers of transactions, and copiers of what they commit, exactly once: librdkafka
share_clients  members of a share group: librdkafka, Java, and redis-py workers on the streams
redis_clients  redis-py writers by XADD, and a Redis consumer group
system    Redis, its replicas or Sentinels, a proxy before it, and brokers
faults    what goes wrong, by name, and what each set-up may lose by it
upgrade   brokers replaced by those of another build, in a fixed order: `make test-upgrade`
__main__  one run: `make jepsen ARGS="--minutes 30 --seed 7"`
duplicates  idempotent producers of all libraries while replies are lost, Apache Kafka as the control: `make duplicates`
"""
