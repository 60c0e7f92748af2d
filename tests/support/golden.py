"""Data of this version for the tests of later ones, and what clients read from it.

`python -m tests.support.golden DIRECTORY` has real clients write to a broker, and writes the content of its Redis as
commands (redis_commands.py): `record.jsonl`, and `batch.jsonl`, whose topics are in format `batch`; `record.json` and
`batch.json` are what clients read. tests/data/ has a directory for each format of data; no later version writes its
files again.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from korvet import admin as api
from korvet.admin import EARLIEST, AdminClient, ConfigSource, NewTopic, Resource, ScramMechanism, settled
from korvet.admin.acls import AclBinding
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.share.types import ACCEPT, REJECT, RELEASE
from tests.support import reading, redis_commands, redis_servers
from tests.support.batches import Record, batch
from tests.support.broker import Broker, korvet_broker
from tests.support.group_consumer import streaming
from tests.support.partition_state import log_of, producers_of, set_producer
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.reading import produce, send
from tests.support.records import TIMESTAMP_FIRST_MS, Received
from tests.support.share_consumer import Delivered, ShareConsumer
from tests.support.topic_client import Client

SETTINGS = {
    "listeners": "INSIDE://127.0.0.1:0,LOGIN://127.0.0.1:0",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
    "log.cleaner.backoff.ms": "50",
    "offsets.retention.minutes": "2147483647",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
"""Of a broker on this data, so that nothing of it expires and all of it can be read."""

USER, PASSWORD = "alice", "alice-secret"
TOPICS = {
    "plain": {"storage.compression": "zstd", "retention.ms": "-1"},
    "lz4": {"storage.compression": "lz4"},
    "trimmed": {},
    "emptied": {},
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": str(2**62),
    },
    "transactions": {},
    "open": {},
    "external": {},
    "idempotent": {},
}
CODECS = ("none", "lz4", "zstd")
BATCH_TOPICS = (*CODECS, "plain")
"""Topics in format `batch`: one of each codec, and one with transactions."""

MEMBERS = {
    "classic": {"group.protocol": "classic", "group.instance.id": "static"},
    "consumer": {"group.protocol": "consumer"},
}
"""Groups whose members read `plain`; the static one never leaves."""

SHARED = ("plain", "compacted")
"""Topics with a share group of the same name: its part of `plain` is a Redis group, that of `compacted` has ranges."""

LATER_MS = 9_999_999_999_999


class Idempotent(NamedTuple):
    """The producer of the topic `idempotent`: its id, and of its last batch sequence and base offset."""

    producer_id: int
    sequence: int
    base_offset: int

    def batch(self, sequence: int) -> bytes:
        """Return a batch of two records from a sequence on."""
        values = (b"sequence %d" % number for number in (sequence, sequence + 1))
        return batch(*map(Record, values), producer_id=self.producer_id, epoch=0, sequence=sequence)


@contextlib.contextmanager
def broker_on(directory: Path, redis_url: str, **settings: str) -> Iterator[Broker]:
    """Run a broker with the SETTINGS and these, `_` for `.`, on a Redis."""
    given = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    flags = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    with korvet_broker(directory, "--redis-url", redis_url, *flags, listen=(), workers=1) as broker:
        yield broker


def address_of(broker: Broker, listener: str) -> str:
    """Return where a broker listens by a name, as HOST:PORT."""
    host, port = broker.at(listener)
    return f"{host}:{port}"


def timed(*records: dict[str, Any]) -> list[dict[str, Any]]:
    """Return records for partition 0 with times a second apart, unless they have one."""
    return [
        {"partition": 0, "timestamp": TIMESTAMP_FIRST_MS + 1000 * number, **record}
        for number, record in enumerate(records)
    ]


def values(*texts: str) -> list[dict[str, Any]]:
    """Return a record for each text."""
    return timed(*({"key": text[:1], "value": text} for text in texts))


def write_record_data(broker: Broker, stored: Any) -> Idempotent:
    """Write what is stored by topics in format `record`, by groups and by what administers a cluster."""
    bootstrap = address_of(broker, "INSIDE")
    with AdminClient(bootstrap) as admin:
        settled(admin.topics.create([NewTopic(name, 1, configs=configs) for name, configs in TOPICS.items()]))
        _write_security(admin)
        plain = _write_plain(bootstrap)
        _write_trimmed(bootstrap, admin)
        _write_compacted(bootstrap, admin, stored)
        _write_transactions(bootstrap, "transactions", plain[1])
        _write_open_transaction(bootstrap, plain[2])
        produce(bootstrap, "external", *values("by a producer"))
        stored.xadd("korvet:external:0", {"key": "k", "value": "by XADD", "header.h": "1", "other": "2"})
        produce(bootstrap, "external", *values("by a producer again"))
        for group in MEMBERS:
            with reader(bootstrap, group) as (consumer, _):
                offsets = [TopicPartition("plain", 0, plain[3], f"of {group}")]
                consumer.commit(offsets=offsets, asynchronous=False)
        with Client(broker.at("INSIDE")) as client:
            with streaming(client, "streams", "plain"):
                pass
            settled(admin.offsets.alter("streams", {api.TopicPartition("plain", 0): plain[4]}))
            for topic in SHARED:
                _share(client, admin, topic)
            produce(bootstrap, "plain", *values("pending for a Redis worker"))
            assert stored.xreadgroup("plain", "worker", {"korvet:plain:0": ">"})
            return _write_idempotent(client)


@contextlib.contextmanager
def reader(bootstrap: str, group: str) -> Iterator[tuple[Consumer, int]]:
    """Give a member of one of the groups in MEMBERS, and the offset of the first record that it reads."""
    common = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**common, **MEMBERS[group], "enable.auto.commit": False})
    try:
        consumer.subscribe(["plain"])
        messages: list[Any] = []

        def is_read() -> bool:
            messages.extend(consumer.consume(1, 0.1))
            return bool(messages)

        wait_until(is_read, "a record is read")
        yield consumer, reading.as_received(messages[0]).offset
    finally:
        consumer.close()


def _write_security(admin: AdminClient) -> None:
    admin.users.set_password(USER, PASSWORD, ScramMechanism.SCRAM_SHA_256)
    readable = (
        (AclResourceType.TOPIC, PatternType.PREFIXED, "pla"),
        (AclResourceType.GROUP, PatternType.LITERAL, "*"),
    )
    for kind, pattern, name in readable:
        by = f"User:{USER}"
        acl = AclBinding(kind, pattern, name, by, "*", AclOperation.READ, AclPermissionType.ALLOW)
        settled(admin.acls.create([acl]))
    settled(admin.quotas.alter({(("user", USER), ("client-id", None)): {"producer_byte_rate": 1e9}}))
    settled(admin.configs.alter({Resource.cluster(): {"message.max.bytes": "2000000"}}))


def _write_plain(bootstrap: str) -> list[int]:
    headers = [("h", b"one"), ("h", b"two"), ("empty", b""), ("null", None), ("bytes", bytes(range(256)))]
    produce(bootstrap, "lz4", *values("large " * 500, "small"))
    records = timed(
        {"key": b"k", "value": b"v", "headers": headers},
        {"key": None, "value": b""},
        {"key": b"", "value": None},
        {"key": bytes(range(256)), "value": b"\r\n\0"},
        *({"key": b"l", "value": value} for value in ("large " * 500, "last")),
    )
    return produce(bootstrap, "plain", *records, **{"compression.type": "gzip"})


def _write_trimmed(bootstrap: str, admin: AdminClient) -> None:
    for topic, count in (("trimmed", 2), ("emptied", 3)):
        offsets = produce(bootstrap, topic, *values("one", "two", "three"))
        before = [*offsets, -1][count]
        settled(admin.topics.delete_records({api.TopicPartition(topic, 0): before}))


def _write_compacted(bootstrap: str, admin: AdminClient, stored: Any) -> None:
    """Have a compacted part with a tombstone, and a rest that no pass has seen nor will see."""
    records = [*values("a1", "b1", "a2", "c1", "c2"), {"key": "b", "value": None}]
    produce(bootstrap, "compacted", *timed(*records))

    def is_compacted() -> bool:
        state = "{korvet:compacted:0}:state"
        return log_of(stored, state).next_offset == int(stored.hget(state, "clean_end") or -1)

    wait_until(is_compacted, "it is compacted")
    settled(admin.configs.alter({Resource.topic("compacted"): {"min.cleanable.dirty.ratio": "1"}}))
    produce(bootstrap, "compacted", *values("a3", "d1"))


def _write_transactions(bootstrap: str, topic: str, committed: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for end in ("abort", "commit", "abort"):
        producer.begin_transaction()
        send(producer, topic, *values(f"1 to {end}", f"2 to {end}"))
        if end == "commit":
            _send_offset(producer, committed)
        getattr(producer, f"{end}_transaction")(WAIT_SECONDS_MAX)
    produce(bootstrap, topic, *values("of no transaction"))


def _write_open_transaction(bootstrap: str, pending: int) -> None:
    produce(bootstrap, "open", *values("before it"))
    timeout = {"transaction.timeout.ms": 10_000, "message.timeout.ms": 10_000}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "open", **timeout})
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, "open", *values("of it"))
    _send_offset(producer, pending)
    produce(bootstrap, "open", *values("", "after it")[1:])


def _send_offset(producer: Producer, offset: int) -> None:
    member = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "transactional", "log_level": 0})
    offsets = [TopicPartition("plain", 0, offset)]
    producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), WAIT_SECONDS_MAX)
    member.close()


def _share(client: Client, admin: AdminClient, topic: str) -> None:
    """Accept a record, reject one and release one; what is acquired besides is released with the connection."""
    settled(admin.configs.alter({Resource.group(topic): {"share.auto.offset.reset": "earliest"}}))
    [described] = settled(admin.topics.describe([topic])).values()
    assert described.topic_id is not None
    member = ShareConsumer(client, topic, topic).on(described.topic_id.value)
    acquired = _acquired(member)
    for record, kind in zip(acquired, (ACCEPT, REJECT, RELEASE), strict=False):
        member.accept([record], kind)


def _acquired(member: ShareConsumer) -> list[Delivered]:
    """Return the first records that a member gets."""
    records: list[Delivered] = []

    def is_acquired() -> bool:
        records.extend(member.poll(500))
        return bool(records)

    wait_until(is_acquired, "records are acquired")
    return records


def _write_idempotent(client: Client) -> Idempotent:
    given = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1), 4)
    producer = Idempotent(given.producer_id, 2, -1)
    for sequence in (0, 2):
        answer = client.produce("idempotent", producer.batch(sequence))
        assert answer.error_code == 0, answer.error_message
        producer = producer._replace(base_offset=answer.base_offset)
    return producer


def keep_producers(stored: Any) -> None:
    """Have producers written last by a clock that was ahead: the keeper's first round would expire all others."""
    for state in stored.scan_iter("{*}:state"):
        for producer_id, row in producers_of(stored, state).items():
            set_producer(stored, state, producer_id, row._replace(last_ms=LATER_MS))


def write_batch_data(broker: Broker) -> None:
    """Write the topics in format `batch`."""
    bootstrap = address_of(broker, "INSIDE")
    with AdminClient(bootstrap) as admin:
        configs = {"storage.format": "batch", "compression.type": "producer"}
        settled(admin.topics.create([NewTopic(name, 1, configs=configs) for name in BATCH_TOPICS]))
    for codec in CODECS:
        produce(bootstrap, codec, *values("large " * 500, "small"), **{"compression.type": codec})
    _write_transactions(bootstrap, "plain", 1)


def observed(broker: Broker) -> dict[str, Any]:
    """Return what clients read once the open transaction has timed out; share groups deliver once more by this."""
    bootstrap = address_of(broker, "INSIDE")
    with AdminClient(bootstrap) as admin:
        wait_until(
            lambda: settled(admin.transactions.describe(["open"]))["open"].state == "CompleteAbort",
            "the open transaction is aborted",
        )
        seen: dict[str, Any] = {}
        uncommitted, committed = (read(bootstrap, f"read_{level}") for level in ("uncommitted", "committed"))
        for topic in TOPICS:
            partition = api.TopicPartition(topic, 0)
            first, at_time = (
                settled(admin.offsets.at({partition: at}))[partition].offset
                for at in (EARLIEST, TIMESTAMP_FIRST_MS + 1000)
            )
            seen[f"topic {topic}"] = {
                "configs": _configs(admin, Resource.topic(topic), ConfigSource.TOPIC),
                "start": first,
                "offset of a time": at_time,
                "committed": [record.offset for record in committed[topic, 0]],
                "records": list(map(_as_json, uncommitted[topic, 0])),
            }
        seen["configs of all brokers"] = _configs(admin, Resource.cluster(), ConfigSource.CLUSTER)
        for name, kind in sorted((group.group_id, group.type) for group in admin.groups.list()):
            offsets = admin.offsets.committed(name).items() if name not in SHARED else ()
            seen[f"group {name}"] = {
                "type": kind,
                "configs": _configs(admin, Resource.group(name), ConfigSource.GROUP),
                "committed": [[str(at), offset.offset, offset.metadata] for at, offset in offsets],
            }
        seen["ACLs"] = list(map(str, admin.acls.describe()))
        seen["quotas"] = [[entity, quotas] for entity, quotas in admin.quotas.describe().items()]
    login: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    login |= {"sasl.username": USER, "sasl.password": PASSWORD}
    with reading.consumer(address_of(broker, "LOGIN"), "plain", **login) as consumer:
        seen[f"first record of {USER}"] = reading.read(consumer, 1)[0].offset
    for group in MEMBERS:
        with reader(bootstrap, group) as (_, first):
            seen[f"first record of group {group}"] = first
    with Client(broker.at("INSIDE")) as client:
        for topic in SHARED:
            member = ShareConsumer(client, topic, topic).on(client.described(topic).topic_id)
            seen[f"records of share group {topic}"] = [
                [record.offset, record.deliveries] for record in _acquired(member)
            ]
            member.leave()
    return seen


def observed_batches(broker: Broker) -> dict[str, Any]:
    """Return what clients read from the topics in format `batch`."""
    bootstrap = address_of(broker, "INSIDE")
    uncommitted, committed = (
        read(bootstrap, f"read_{level}", BATCH_TOPICS) for level in ("uncommitted", "committed")
    )
    return {
        f"topic {topic}": {
            "committed": [record.offset for record in committed[topic, 0]],
            "records": list(map(_as_json, uncommitted[topic, 0])),
        }
        for topic in BATCH_TOPICS
    }


def read(
    bootstrap: str, isolation: str, topics: Iterable[str] = TOPICS
) -> dict[tuple[str, int], list[Received]]:
    """Return the records of all partitions."""
    return reading.partitions_to_end(bootstrap, [(topic, 0) for topic in topics], isolation)


def _configs(admin: AdminClient, resource: Resource, source: ConfigSource) -> dict[str, str | None]:
    configs = settled(admin.configs.describe([resource]))[resource]
    return {name: config.value for name, config in configs.items() if config.source is source}


def _as_json(record: Received) -> list[Any]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else data.decode("latin-1")

    headers = [[name, text(value)] for name, value in record.headers]
    return [record.offset, record.timestamp, text(record.key), text(record.value), headers]


def main(directory: Path) -> None:
    """Write the files."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        redis_servers.embedded_server() as url,
        redis_servers.connected(url) as stored,
    ):
        logs = Path(scratch)
        with broker_on(logs, url) as broker:
            write_batch_data(broker)
            _write_seen(observed_batches(broker), directory / "batch.json")
        redis_commands.write(stored, directory / "batch.jsonl")
        stored.flushall()
        # Its keeper aborts no transaction, and compacts what it can.
        settings = {
            "transaction_abort_timed_out_transaction_cleanup_interval_ms": str(2**31 - 1),
            "log_cleaner_min_cleanable_ratio": "0",
        }
        with broker_on(logs, url, **settings) as broker:
            producer = write_record_data(broker, stored)
        keep_producers(stored)
        redis_commands.write(stored, directory / "record.jsonl")
        stored.flushall()
        redis_commands.load(stored, directory / "record.jsonl")
        with broker_on(logs, url) as broker:
            seen = {"idempotent producer": producer, **observed(broker)}
    _write_seen(seen, directory / "record.json")


def _write_seen(seen: Mapping[str, Any], path: Path) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in seen.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
