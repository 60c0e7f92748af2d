"""Data of this version for the tests of later ones, and what clients read from it.

`python -m tests.support.golden DIRECTORY` has real clients write the same to a broker in each of the LAYOUTS. In
`record`, for example, it writes the content of Redis as commands (redis_commands.py) to `record.jsonl`, the lake to
`lake/record`, and what clients read of both to `record.json`. tests/data/ has a directory for each format of data; no
later version writes its files again.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from korvet import admin as api
from korvet.admin import EARLIEST, AdminClient, ConfigSource, NewTopic, Resource, ScramMechanism, settled
from korvet.admin.acls import AclBinding
from korvet.cluster.leases import LeaseStore
from korvet.cluster.pipelines import LostOffsets, PipelineStatus, QueryPosition, QueryStatus
from korvet.lake.compaction import compact
from korvet.log import external_entries
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.types import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    FeatureUpgradeType,
    PatternType,
)
from korvet.redis.keys import Keys
from korvet.share.types import ACCEPT, GAP, REJECT, RELEASE
from tests.support import reading, redis_commands, redis_servers
from tests.support.archives import Topics, archive, topics_in, trim
from tests.support.batches import Record, batch
from tests.support.batches import read as read_batches
from tests.support.broker import Broker, korvet_broker
from tests.support.group_consumer import streaming
from tests.support.partition_state import log_of, producers_of, set_producer
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.reading import produce, send
from tests.support.records import TIMESTAMP_FIRST_MS, Received
from tests.support.share_consumer import Ack, Delivered, ShareConsumer
from tests.support.topic_client import Client

LAYOUTS = {"record": {}, "dense": {"offset.encoding": "dense"}, "batch": {"storage.format": "batch"}}
"""The configs that all topics of a layout have: offsets that are times, of entries or of batches."""

SETTINGS = {
    "listeners": "INSIDE://127.0.0.1:0,LOGIN://127.0.0.1:0",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
    "lake.interval.ms": "0",
    "lake.upkeep.interval.ms": "0",
    "log.cleaner.backoff.ms": "50",
    "offsets.retention.minutes": "2147483647",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
"""Of a broker on this data, so that nothing of it expires and all of it can be read."""

USER, PASSWORD = "alice", "alice-secret"
TOPICS = {
    "plain": {"storage.compression": "zstd", "retention.ms": "-1"},
    "codecs": {"storage.compression": "lz4"},
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
    "moving": {},
    "idempotent": {},
    "archived": {"remote.storage.enable": "true"},
    "dated": {"remote.storage.enable": "true", "lake.partitioning": "date"},
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

MEMBERS = {
    "classic": {"group.protocol": "classic", "group.instance.id": "static"},
    "consumer": {"group.protocol": "consumer", "group.instance.id": "static"},
}
"""Groups whose members read `plain`; static ones never leave."""

SHARED = ("plain", "compacted")
"""Topics with a share group of the same name.

Its part of `plain` is a Redis group unless the layout is `batch`; that of `compacted` has ranges.
"""

OFF = ("eligible.leader.replicas.version",)
LATER_MS = 9_999_999_999_999
LARGE = "large " * 200


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
def broker_on(directory: Path, redis_url: str, lake: Path, **settings: str) -> Iterator[Broker]:
    """Run a broker with the SETTINGS and these, `_` for `.`, on a Redis and a lake."""
    given = (
        SETTINGS
        | {"lake.path": str(lake)}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )
    flags = ("--redis-url", redis_url)
    with korvet_broker(directory, *flags, settings=given, listen=(), workers=1) as broker:
        yield broker


def timed(*records: dict[str, Any]) -> list[dict[str, Any]]:
    """Return records for partition 0 with times a second apart, unless they have one."""
    return [
        {"partition": 0, "timestamp": TIMESTAMP_FIRST_MS + 1000 * number, **record}
        for number, record in enumerate(records)
    ]


def values(*texts: str) -> list[dict[str, Any]]:
    """Return a record for each text."""
    return timed(*({"key": text[:1], "value": text} for text in texts))


def write_data(broker: Broker, stored: Any, lake: Topics, layout: Mapping[str, str]) -> Idempotent:
    """Write what is stored by topics, by groups, by what administers a cluster and by pipelines."""
    bootstrap = broker.bootstrap_of("INSIDE")
    with AdminClient(bootstrap) as admin:
        created = [NewTopic(name, 1, configs={**configs, **layout}) for name, configs in TOPICS.items()]
        settled(admin.topics.create(created))
        _write_security(admin)
        plain = _write_plain(bootstrap)
        _write_trimmed(bootstrap, admin)
        _write_compacted(bootstrap, admin, stored)
        _write_transactions(bootstrap, "transactions", plain[1])
        _write_open_transaction(bootstrap, plain[2])
        produce(bootstrap, "external", *values("by a producer"))
        stored.xadd("korvet:external:0", {"key": "k", "value": "by XADD", "header.h": "1", "other": "2"})
        produce(bootstrap, "external", *values("by a producer again"))
        _write_archived(bootstrap, lake, plain[1])
        _write_pipeline(lake)
        for group in MEMBERS:
            with reader(bootstrap, group) as (consumer, _):
                offsets = [TopicPartition("plain", 0, plain[3], f"of {group}")]
                consumer.commit(offsets=offsets, asynchronous=False)
        with Client(broker.at("INSIDE")) as client:
            settled(admin.offsets.alter("streams", {api.TopicPartition("plain", 0): plain[4]}))
            with streaming(client, "streams", "plain", leaves=False):
                pass
            for topic in SHARED:
                _share(client, admin, topic)
            produce(bootstrap, "plain", *values("pending for a Redis worker"))
            if layout != LAYOUTS["batch"]:
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
    admin.cluster.update_features(dict.fromkeys(OFF, 0), FeatureUpgradeType.SAFE_DOWNGRADE)


def _write_plain(bootstrap: str) -> list[int]:
    headers = [("h", b"one"), ("h", b"two"), ("empty", b""), ("null", None), ("bytes", bytes(range(256)))]
    for codec in CODECS:
        produce(bootstrap, "codecs", *values(LARGE, "small"), **{"compression.type": codec})
    records = timed(
        {"key": b"k", "value": b"v", "headers": headers},
        {"key": None, "value": b""},
        {"key": b"", "value": None},
        {"key": bytes(range(256)), "value": b"\r\n\0"},
        *({"key": b"l", "value": value} for value in (LARGE, "last")),
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


def _write_archived(bootstrap: str, lake: Topics, committed: int) -> None:
    """Have tables with records that have left Redis, a compacted table, and a record that is not archived."""
    for topic in ("archived", "dated"):
        produce(
            bootstrap, topic, *timed({}, {"timestamp": TIMESTAMP_FIRST_MS + 86_400_000, "value": "next day"})
        )
    archive(lake)
    _write_transactions(bootstrap, "archived", committed)
    archive(lake)
    for remote in lake.stores.remote_topics():
        assert all(outcome.done for outcome in compact(lake.source.lake, remote.of))
        trim(lake, remote.partitions[0])
    produce(bootstrap, "archived", *values("in both"))
    archive(lake)
    produce(bootstrap, "archived", *values("not archived"))


def _write_pipeline(lake: Topics) -> None:
    """Have a pipeline that has stopped, and the counters of leases that were held."""
    keys, topic = Keys(lake.source.namespace), lake.stores.topic("archived")
    positions = {"archived": QueryPosition(topic.id, {0: lake.bounds(topic.partitions[0]).archived})}
    query = QueryStatus(batch=7, records=2, positions=positions, lost={"archived": {0: LostOffsets(3, 5, 8)}})
    holder, at_ms = "host/1/machine/1", TIMESTAMP_FIRST_MS
    stopped = PipelineStatus(name="sales", state="stopped", since_ms=at_ms, started_ms=at_ms, holder=holder)
    lake.stores.pipelines.write(msgspec.structs.replace(stopped, queries={"main": query}))
    archiver = LeaseStore(lake.stores.redis, keys.archiver_lease, keys.archiver_fence)
    for lease in (archiver, lake.stores.pipelines.lease("sales")):
        assert lease.acquire(holder, 1000) == 1
        lease.release(holder)


def _share(client: Client, admin: AdminClient, topic: str) -> None:
    """Accept a record and reject one, pass what no record has, and release the others."""
    settled(admin.configs.alter({Resource.group(topic): {"share.auto.offset.reset": "earliest"}}))
    member = ShareConsumer(client, topic, topic).on(client.described(topic).topic_id)
    answers: list[Any] = []

    def is_acquired() -> bool:
        answers[:] = member.fetch(500).values()
        return any(answer.acquired_records for answer in answers)

    wait_until(is_acquired, "records are acquired")
    [place], [answer] = member.wanted, answers
    offsets = [record.offset for record in read_batches(bytes(answer.records))]
    kinds = dict.fromkeys(offsets, RELEASE) | dict(zip(offsets, (ACCEPT, REJECT), strict=False))
    for acquired in answer.acquired_records:
        span = range(acquired.first_offset, acquired.last_offset + 1)
        ack = Ack(span[0], span[-1], [kinds.get(offset, GAP) for offset in span])
        assert member.acknowledged({place: [ack]}) == {place: 0}


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
    for transaction in stored.scan_iter("korvet:transaction:*"):
        stored.hset(transaction, "changed", LATER_MS)


def add_external_entries(stored: Any, lake: Topics) -> None:
    """Have entries that no broker has seen, and others on their way to free offsets."""
    for number in range(3):
        stored.xadd(
            "korvet:moving:0", {"value": f"external {number}"}, f"{TIMESTAMP_FIRST_MS}-{5000 + number}"
        )
    with mock.patch.object(external_entries, "_STEP_ENTRIES_MAX", 1):
        lake.stores.logs.external.step(lake.stores.topic("moving").partitions[0])
    stored.xadd("korvet:external:0", {"value": "by XADD without a broker"})


def observed(broker: Broker, lake: Topics) -> dict[str, Any]:
    """Return what clients read once the open transaction has timed out; share groups deliver once more by this."""
    bootstrap = broker.bootstrap_of("INSIDE")
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
        seen |= _observed_cluster(admin)
    seen["pipelines"] = [
        [pipeline.name, pipeline.state, msgspec.to_builtins(pipeline.positions())]
        for pipeline in lake.stores.pipelines.read()
    ]
    login: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    login |= {"sasl.username": USER, "sasl.password": PASSWORD}
    with reading.consumer(broker.bootstrap_of("LOGIN"), "plain", **login) as consumer:
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


def _observed_cluster(admin: AdminClient) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "configs of all brokers": _configs(admin, Resource.cluster(), ConfigSource.CLUSTER),
        "cluster id": admin.cluster.describe().cluster_id,
        "ACLs": list(map(str, admin.acls.describe())),
        "quotas": [[entity, quotas] for entity, quotas in admin.quotas.describe().items()],
    }
    for name, kind in sorted((group.group_id, group.type) for group in admin.groups.list()):
        offsets = admin.offsets.committed(name).items() if name not in SHARED else ()
        seen[f"group {name}"] = {
            "type": kind,
            "configs": _configs(admin, Resource.group(name), ConfigSource.GROUP),
            "committed": [[str(at), offset.offset, offset.metadata] for at, offset in offsets],
        }
    seen["features that are off"] = [name for name in OFF if name not in admin.cluster.features().finalized]
    ids = sorted(transaction.transactional_id for transaction in admin.transactions.list())
    seen["transactional ids"] = [
        [name, described.producer_id, described.producer_epoch, described.state]
        for name, described in settled(admin.transactions.describe(ids)).items()
    ]
    return seen


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
    for layout in LAYOUTS:
        with redis_servers.embedded_server() as url, redis_servers.connected(url) as stored:
            _write_files(directory, layout, url, stored)


def _write_files(directory: Path, layout: str, url: str, stored: Any) -> None:
    lake_path, commands = directory / "lake" / layout, directory / f"{layout}.jsonl"
    # Its keeper aborts no transaction, and compacts what it can.
    settings = {
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": str(2**31 - 1),
        "log_cleaner_min_cleanable_ratio": "0",
    }
    with tempfile.TemporaryDirectory() as scratch, topics_in(url, lake_path) as lake:
        with broker_on(Path(scratch), url, lake_path, **settings) as broker:
            producer = write_data(broker, stored, lake, LAYOUTS[layout])
        keep_producers(stored)
        add_external_entries(stored, lake)
        redis_commands.write(stored, commands)
        stored.flushall()
        redis_commands.load(stored, commands)
        with broker_on(Path(scratch), url, lake_path) as broker:
            seen = {"idempotent producer": producer, **observed(broker, lake)}
    _write_seen(seen, directory / f"{layout}.json")


def _write_seen(seen: Mapping[str, Any], path: Path) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in seen.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
