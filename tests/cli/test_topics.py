"""`korvet topics`: what it makes, shows, alters, copies and deletes, seen by other clients too."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import lz4.frame
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from confluent_kafka.admin import AdminClient as Librdkafka
from confluent_kafka.admin._config import ConfigResource

from korvet.admin import topic_copy
from korvet.admin.client import AdminClient
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset
from korvet.admin.topic_copy import CopyError, TopicCopy
from korvet.admin.types import LogRecord, TopicPartition, settled
from korvet.protocol.records.batch import HEADER_BYTES
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.keys import Keys
from korvet.topics.registry import id_text, new_id
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.cli.commands import (
    at_broker,
    commit,
    committed,
    done,
    failed,
    json_at_broker,
    korvet,
    table,
)
from tests.support.batches import LINKED, LZ4, MALFORMED, NONE, Record, batch, forged, raw
from tests.support.domain import domain
from tests.support.group_consumer import joined, sharing
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.topic_client import Client

topics = partial(at_broker, "topics")
as_json = partial(json_at_broker, "topics")


def partitions(broker: InProcessBroker, topic: str) -> int:
    """Return how many partitions librdkafka sees; 0 where there is no such topic."""
    admin = Librdkafka({"bootstrap.servers": broker.bootstrap})
    result = admin.list_topics(timeout=30).topics.get(topic)
    return 0 if result is None else len(result.partitions)


def test_topics_are_made_with_partitions_and_settings(broker: InProcessBroker, name: str) -> None:
    names = (name, f"{name}-2")
    flags = ("--partitions", "3", "-c", "retention.ms=1000", "-c", "segment.ms=5000")
    assert done(topics(broker, "create", *names, *flags)) == f"created {name}\ncreated {name}-2\n"
    assert [partitions(broker, item) for item in names] == [3, 3]
    [described] = as_json(broker, "describe", name)
    assert (described["configs"]["retention.ms"], described["configs"]["segment.ms"]) == ("1000", "5000")


def test_a_topic_is_created_with_an_assignment(broker: InProcessBroker, name: str) -> None:
    [row] = as_json(broker, "create", name, "--replica-assignment", "0,0,0,0")
    assert (row["created"], row["partitions"], row["replication_factor"], row["error"]) == (True, 4, 1, None)
    [listed] = [item for item in as_json(broker, "list") if item["topic"] == name]
    assert listed == {"topic": name, "id": row["id"], "partitions": 4, "internal": False}
    message = failed(topics(broker, "create", f"{name}-2", "--replica-assignment", "0:7"))
    assert message.startswith(f"Error: topic {name}-2: INVALID_REPLICA_ASSIGNMENT")


def test_validate_only_creates_nothing(broker: InProcessBroker, name: str) -> None:
    assert done(topics(broker, "create", name, "--validate-only")) == f"could be created {name}\n"
    assert partitions(broker, name) == 0
    message = failed(topics(broker, "create", name, "--validate-only", "-c", "retention.msx=1"))
    assert message.endswith(
        "INVALID_CONFIG: Unknown topic config name: retention.msx; did you mean retention.ms?\n"
    )


def test_an_existing_topic_is_a_failure_without_if_not_exists(broker: InProcessBroker, topic: str) -> None:
    result = topics(broker, "create", topic, f"{topic}-2")
    assert failed(result).startswith(f"Error: topic {topic}: TOPIC_ALREADY_EXISTS")
    assert result.stdout == f"created {topic}-2\n"
    assert done(topics(broker, "create", topic, "--if-not-exists")) == f"already exists: {topic}\n"
    assert as_json(broker, "create", topic, "--if-not-exists") == [
        {"topic": topic, "created": False, "error": None}
    ]
    assert "INVALID_TOPIC_EXCEPTION" in failed(topics(broker, "create", "a b", "--if-not-exists"))


def test_topics_are_listed(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    printed = done(topics(broker, "list"))
    [row] = [row for row in table(printed) if row[0] == name]
    assert row[1] == "2"
    assert len(row[2]) == 22


def test_a_topic_is_described_with_what_is_in_it(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name, partitions=2, retention_ms="-1")
    client.append(name, b"x" * 100, b"y" * 100, partition=1)
    printed = done(topics(broker, "describe", name))
    lines = printed.splitlines()
    assert lines[0].startswith(f"{name}: 2 partitions, id ")
    assert "  retention.ms=-1" in lines
    first, second = table(printed)
    assert first == ["0", "0", "0", "0", "0", "0", "0", "B"]
    assert second[:6] == ["1", "0", "0", "0", "0", "2"]
    [described] = as_json(broker, "describe", name)
    filled = described["partitions"][1]
    assert filled["size_bytes"] > 200
    assert {key: value for key, value in filled.items() if key != "size_bytes"} == {
        "partition": 1,
        "leader": 0,
        "leader_epoch": client.leader_epoch(name, partition=1),
        "replicas": [0],
        "in_sync": [0],
        "offline": [],
        "begin": 0,
        "end": 2,
    }


def test_an_unknown_topic_fails_and_the_others_are_described(broker: InProcessBroker, topic: str) -> None:
    result = topics(broker, "describe", "nothing", topic)
    unknown = "Error: topic nothing: UNKNOWN_TOPIC_OR_PARTITION: "
    assert failed(result) == f"{unknown}there is no such topic or partition\n"
    # Other commands say the same, with the broker's own words after it if there are some.
    for command in (
        ("topics", "delete", "nothing", "-y"),
        ("topics", "alter", "nothing", "--partitions", "2"),
        ("topics", "elect-leaders", "nothing"),
        ("topics", "reassign", "--cancel", "nothing"),
        ("configs", "describe", "-t", "nothing"),
        ("groups", "reset-offsets", "g", "--topic", "nothing", "--to-earliest"),
        ("consume", "nothing", "--exit"),
    ):
        assert failed(korvet(*command, "-b", broker.bootstrap)).startswith(unknown), command
    assert result.stdout.startswith(f"{topic}: 1 partition,")
    assert topic in [item["topic"] for item in as_json(broker, "describe", "--all-topics")]


def test_a_topic_with_slot_tags_is_described_with_its_streams_and_what_is_described_can_be_set(
    broker: InProcessBroker, name: str
) -> None:
    """As a topic of a cluster with redis.placement=even has them."""
    tags = "0aB1cD"
    row = TopicRow(name=name, id=id_text(new_id()), partitions=2, tags=tags)
    with closing(blocking_redis(broker.redis_url, timeout_ms=5000, connect_timeout_ms=5000)) as redis:
        store = TopicStore(redis, Keys("korvet"))
        text = store._rows.create(row, 0)
        assert text is not None
        store._finish_creation(name, text)
    streams = [f"korvet:{name}:0:{{0aB}}", f"korvet:{name}:1:{{1cD}}"]
    [described] = as_json(broker, "describe", name)
    assert [item["stream"] for item in described["partitions"]] == streams
    printed = done(topics(broker, "describe", name))
    assert [line.split()[-1] for line in printed.splitlines()[-2:]] == streams
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    admin = Librdkafka({"bootstrap.servers": broker.bootstrap})
    config = admin.describe_configs([resource])[resource].result(30)["redis.slot.tags"]
    assert (config.value, config.is_read_only) == (tags, True)
    assert done(topics(broker, "alter", name, "-c", f"redis.slot.tags={tags}")) == f"altered {name}\n"
    assert "INVALID_CONFIG" in failed(topics(broker, "alter", name, "-c", "redis.slot.tags=0aB"))


def test_topics_get_more_partitions_and_other_settings(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, retention_ms="5")
    flags = ("--partitions", "4", "-d", "retention.ms", "-c", "segment.ms=7000")
    assert done(topics(broker, "alter", name, *flags)) == f"altered {name}\n"
    assert partitions(broker, name) == 4
    [described] = as_json(broker, "describe", name)
    assert described["configs"]["segment.ms"] == "7000"
    assert "retention.ms" not in described["configs"]
    assert "INVALID_PARTITIONS" in failed(topics(broker, "alter", name, "--partitions", "2"))
    assert "INVALID_CONFIG" in failed(
        topics(broker, "alter", name, "-c", "segment.ms=x", "--partitions", "5")
    )
    assert as_json(broker, "alter", name, "--partitions", "6", "--validate-only") == [
        {"topic": name, "error": None}
    ]
    assert partitions(broker, name) == 4


def test_topics_are_deleted_once_that_is_confirmed_and_unknown_ones_are_reported(
    broker: InProcessBroker, client: Client, topic: str
) -> None:
    client.create(f"{topic}-2")
    commit(broker, topic, topic, 0)
    assert failed(topics(broker, "delete", topic)).startswith("Error: nothing is deleted")
    assert partitions(broker, topic) == 1
    result = topics(broker, "delete", "--yes", topic, "nothing", f"{topic}-2")
    assert failed(result).startswith("Error: topic nothing: UNKNOWN_TOPIC_OR_PARTITION")
    assert result.stdout == f"deleted {topic}\ndeleted {topic}-2\n"
    assert (partitions(broker, topic), committed(broker, topic, topic)) == (0, [])
    assert as_json(broker, "delete", "--yes", "--if-exists", "nothing") == []


LAYOUTS = {
    "time": "storage.format=record offset.encoding=time",
    "dense": "storage.format=record offset.encoding=dense message.timestamp.type=CreateTime",
    "batch": "storage.format=batch offset.encoding=dense",
    "stamped": "storage.format=batch offset.encoding=dense message.timestamp.type=LogAppendTime",
}
KINDS = {"classic": 3, "consumer": 1, "share": 2}
"""The groups of a test by their types, and the records that each has read."""

LARGE = 20_000  # bytes of a value, and of a fetch of the copy


@pytest.fixture
def admin(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminClient]:
    """Give an admin client, and let a partition take several fetch requests."""
    monkeypatch.setattr(topic_copy, "_FETCH_BYTES", LARGE)
    with AdminClient(broker.bootstrap) as connection:
        yield connection


def records_of(admin: AdminClient, place: TopicPartition) -> list[LogRecord]:
    """Return the records of a partition except those of the transaction that `fill` aborts."""
    offset = settled(admin.offsets.at({place: EARLIEST}))[place].offset
    result = list[LogRecord]()
    while (slice_ := settled(admin.records.read({place: offset}))[place]).next_offset > offset:
        result += slice_.records
        offset = slice_.next_offset
    return [record for record in result if record.value != b"aborted"]


def contents(record: LogRecord) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, record.headers


def producer_of(broker: InProcessBroker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    return producer


def fill(broker: InProcessBroker, client: Client, admin: AdminClient, name: str) -> list[int]:
    """Write records of all shapes; returns the offsets to commit in partition 0."""
    headers = [("a", b"\xff"), ("a", None), ("", b"")]
    first = client.append(name, b"deleted", Record(b"one", b"key", 17, headers), Record(None, b"key", 18))
    producer = producer_of(broker, name)
    producer.produce(name, b"aborted", partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    producer.abort_transaction(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(name, b"transactional", partition=0)
    producer.commit_transaction(WAIT_SECONDS_MAX)
    assert client.produce(name, batch(b"x" * LARGE, b"two", codec=LZ4)).error_code == 0
    client.append(name, b"x" * LARGE, b"three", b"four")
    client.append(name, *[b"y" * (LARGE // 2)] * 4, partition=1)  # larger than a batch of the target may be
    place = TopicPartition(name, 0)
    settled(admin.topics.delete_records({place: first + 1}))
    return [first, first + 2, first + 3, settled(admin.offsets.at({place: LATEST}))[place].offset]


@pytest.mark.parametrize(
    ("before", "after"),
    [("time", "dense"), ("dense", "time"), ("batch", "dense"), ("time", "batch"), ("stamped", "dense")],
)
def test_a_copy_has_the_records_and_offsets_of_the_source_in_any_layout(
    broker: InProcessBroker, client: Client, admin: AdminClient, name: str, before: str, after: str
) -> None:
    own, other = (dict(pair.split("=") for pair in LAYOUTS[layout].split()) for layout in (before, after))
    other["max.message.bytes"] = str(LARGE * 3 // 2)
    client.create(name, partitions=3, **{key.replace(".", "_"): value for key, value in own.items()})
    offsets = fill(broker, client, admin, name)
    for index, offset in enumerate(offsets):
        commit(broker, f"{name}-{index}", name, offset, 1)
    target = f"{name}-copy"
    copied = as_json(broker, "copy", name, target, *[f"-c{key}={value}" for key, value in other.items()])

    [described] = as_json(broker, "describe", target)
    layout = {"offset.sequence.bits": "10"}  # what the source got from the broker's defaults
    assert (described["configs"], len(described["partitions"])) == (layout | own | other, 3)
    for index in range(3):
        source, made = (records_of(admin, TopicPartition(topic, index)) for topic in (name, target))
        assert list(map(contents, made)) == list(map(contents, source))
    assert copied["records"] == 12
    source, made = (records_of(admin, TopicPartition(topic, 0)) for topic in (name, target))
    end = settled(admin.offsets.at({TopicPartition(target, 0): LATEST}))[TopicPartition(target, 0)].offset
    for index, offset in enumerate(offsets):
        expected = [new.offset for old, new in zip(source, made, strict=True) if old.offset >= offset]
        assert committed(broker, f"{name}-{index}", target)[0] == [*expected, end][0]


def test_a_batch_of_more_records_than_the_target_takes_is_divided(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    client.append(name, *[b"v"] * 10_001)
    limits = ("-cstorage.format=record", "-cmax.message.records=10000")
    assert as_json(broker, "copy", name, f"{name}-copy", *limits)["records"] == 10_001


def test_batches_that_cannot_be_read_are_skipped_with_a_line_each(
    broker: InProcessBroker, client: Client, admin: AdminClient, name: str
) -> None:
    client.create(name, storage_format="batch")
    large = random.Random(1).randbytes(LARGE)
    linked = lz4.frame.compress(batch(large, codec=NONE)[HEADER_BYTES:], block_linked=True)
    malformed = {**MALFORMED, "large": raw(large), LINKED: raw(linked, codec=LZ4)}
    malformed["a wrong CRC"] = forged(batch(large), crc=1)
    del malformed["30 MB in 3 kB"]
    sound, holes = [], []
    with domain(broker.redis_url) as here:
        for number, (kind, data) in enumerate(malformed.items()):
            here.append(name, b"%d" % number)
            base = here.put(name, data)
            sound += [b"%d" % number] + ([large] if kind == LINKED else [])
            holes += [] if kind == LINKED else [base]
    result = topics(broker, "copy", name, f"{name}-copy", "--json")
    copied = json.loads(result.stdout)
    assert (copied["records"], copied["skipped"]) == (len(sound), len(holes))
    lines = [line.partition(" to ")[0] for line in result.stderr.splitlines()]
    assert lines == [f"skipped: partition {name}:0, offsets {hole}" for hole in holes]
    assert [record.value for record in records_of(admin, TopicPartition(f"{name}-copy", 0))] == sound


def test_records_that_retention_deletes_meanwhile_are_left_out(
    client: Client, admin: AdminClient, name: str
) -> None:
    client.create(name)
    for value in (b"one", b"two", b"three"):
        client.append(name, value)
    planned = TopicCopy(admin, name, f"{name}-copy", {})
    settled(admin.topics.delete_records({TopicPartition(name, 0): 2}))
    planned.create()
    list(planned.run())
    assert [record.value for record in records_of(admin, TopicPartition(f"{name}-copy", 0))] == [b"three"]


def test_offsets_are_copied_for_groups_of_all_kinds(
    broker: InProcessBroker, client: Client, admin: AdminClient, name: str
) -> None:
    client.create(name, storage_format="record")
    first = client.append(name, b"one", b"two", b"three")
    place, target = TopicPartition(name, 0), TopicPartition(f"{name}-copy", 0)
    with joined(broker.bootstrap, f"{name}-consumer", name, protocol="consumer") as member:
        member.commit(offsets=[LibrdkafkaPartition(name, 0, first + 1)], asynchronous=False)
    with sharing(client, f"{name}-share", name):
        pass
    settled(admin.offsets.alter_share_group(f"{name}-share", {place: first + 2}))
    settled(admin.offsets.alter(f"{name}-classic", {place: CommittedOffset(first + 3, -1, "note")}))
    printed = done(topics(broker, "copy", name, target.topic, "-c", "offset.encoding=dense"))
    assert printed.startswith(f"copied 3 records of {name} to {target.topic}\n")
    rows = [[f"{name}-{kind}", "0", str(first + at), str(at)] for kind, at in KINDS.items()]
    assert table(printed) == rows
    assert admin.offsets.committed(f"{name}-consumer")[target].offset == 1
    assert admin.offsets.committed(f"{name}-classic")[target] == CommittedOffset(3, -1, "note")
    assert (
        settled(admin.offsets.of_share_groups({f"{name}-share": [target]}))[f"{name}-share"][target].start
        == 2
    )


def test_what_must_be_stopped_or_chosen_first_is_named_and_nothing_is_created(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name)
    commit(broker, name, name, 0)
    target = f"{name}-copy"
    with joined(broker.bootstrap, name, name):
        assert failed(topics(broker, "copy", name, target)) == f"Error: group {name} has members: stop them\n"
    assert target not in done(topics(broker, "list"))
    assert failed(topics(broker, "copy", name, name)).startswith(f"Error: topic {name}: TOPIC_ALREADY_EXISTS")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in failed(topics(broker, "copy", target, name))
    assert "did you mean retention.ms?" in failed(topics(broker, "copy", name, target, "-c", "retention.m=1"))


def test_an_incomplete_copy_says_so(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name)
    client.append(name, b"one")
    producer = producer_of(broker, name)
    producer.produce(name, b"open", partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    said = failed(topics(broker, "copy", name, f"{name}-copy")).splitlines()
    producer.abort_transaction(WAIT_SECONDS_MAX)
    assert said == [
        f"{name}-copy is incomplete: delete it, and run the command again",
        f"Error: partition {name}:0 has an open transaction, from offset 1 on",
    ]


def test_a_copy_whose_source_has_changed_fails(
    broker: InProcessBroker, client: Client, admin: AdminClient, name: str
) -> None:
    client.create(name)
    client.append(name, b"one")
    grown, passed = (TopicCopy(admin, name, f"{name}-{number}", {}) for number in "12")
    grown.create()
    passed.create()
    commit(broker, name, name, 1)
    with pytest.raises(CopyError, match=f"^group {name} has committed: stop its members$"):
        list(passed.run())
    client.append(name, b"two")
    with pytest.raises(CopyError, match=r"has grown from offset 1 to 2: stop its writers$"):
        list(grown.run())
    assert committed(broker, name, f"{name}-1") == committed(broker, name, f"{name}-2") == []
