"""`korvet topics`: what it makes, shows, alters and deletes, seen by other clients too."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from confluent_kafka.admin import AdminClient as Librdkafka
from confluent_kafka.admin._config import ConfigResource

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
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client

topics = partial(at_broker, "topics")
as_json = partial(json_at_broker, "topics")


def partitions(broker: InProcessBroker, topic: str) -> int:
    """Return how many partitions librdkafka sees; 0 where there is no such topic."""
    admin = Librdkafka({"bootstrap.servers": broker.bootstrap})
    found = admin.list_topics(timeout=30).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def test_topics_are_made_with_partitions_and_settings(broker: InProcessBroker, name: str) -> None:
    names = (name, f"{name}-2")
    flags = ("--partitions", "3", "-c", "retention.ms=1000", "-c", "segment.ms=5000")
    assert done(topics(broker, "create", *names, *flags)) == f"created {name}\ncreated {name}-2\n"
    assert [partitions(broker, each) for each in names] == [3, 3]
    [described] = as_json(broker, "describe", name)
    assert (described["configs"]["retention.ms"], described["configs"]["segment.ms"]) == ("1000", "5000")


def test_a_topic_is_created_with_an_assignment(broker: InProcessBroker, name: str) -> None:
    [row] = as_json(broker, "create", name, "--replica-assignment", "0,0,0,0")
    assert (row["created"], row["partitions"], row["replication_factor"], row["error"]) == (True, 4, 1, None)
    [listed] = [each for each in as_json(broker, "list") if each["topic"] == name]
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
    assert topic in [each["topic"] for each in as_json(broker, "describe", "--all-topics")]


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
    assert [each["stream"] for each in described["partitions"]] == streams
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
