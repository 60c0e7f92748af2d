"""Topics, their metadata, partitions and configs; configs of brokers, groups and clients' metrics."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import unquote

from tests.differential.session import Session

_NAMES = ("", ".", "..", "a/b", "a b", "\u00e9", "x" * 249, "x" * 250, "__consumer_offsets", "a\n", "_")
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
NODE = "1"


def _configs(text: str) -> dict[str, tuple[str | None, ...]]:
    """Return the values of each config in a text of NAME=VALUE|VALUE, with %20 for a space."""
    rows = (word.split("=", 1) for word in text.split())
    return {
        name: tuple(None if value == "null" else unquote(value) for value in values.split("|"))
        for name, values in rows
    }


TOPIC_CONFIGS = _configs("""
    retention.ms=1000|-1|-2|abc||null|9223372036854775807|9223372036854775808|%205%20|1.0 retention.bytes=-2|0
    cleanup.policy=compact|compact,delete|delete,compact|x||delete,delete|Compact|none
    compression.type=gzip|zstd|none|producer|uncompressed|GZIP|x compression.gzip.level=0|10|-1
    compression.lz4.level=18 compression.zstd.level=23|-131073 min.insync.replicas=0|1|2|-1
    max.message.bytes=0|-1|1|2147483647|2147483648 segment.bytes=13|14|1048576|1048575 segment.ms=0|1
    segment.jitter.ms=-1 segment.index.bytes=3
    message.timestamp.type=CreateTime|LogAppendTime|x|createtime message.timestamp.before.max.ms=-1
    message.timestamp.after.max.ms=5 unclean.leader.election.enable=true|false|TRUE|yes
    delete.retention.ms=-1 min.cleanable.dirty.ratio=1.5|0|NaN
    follower.replication.throttled.replicas=0:1|* leader.replication.throttled.replicas=x
    remote.storage.enable=true remote.log.copy.disable=true remote.log.delete.on.disable=true
    local.retention.ms=-3|-2 local.retention.bytes=5 preallocate=true|1 index.interval.bytes=-1
    flush.messages=0 flush.ms=-1 file.delete.delay.ms=-1 max.compaction.lag.ms=0 min.compaction.lag.ms=-1
    message.format.version=3.0 message.downconversion.enable=true internal.segment.bytes=100
    no.such.config=1
""")
BROKER_CONFIGS = _configs("""
    log.retention.ms=5000|x|-2 num.io.threads=9|0 num.network.threads=4 num.replica.fetchers=2
    background.threads=5 log.cleaner.threads=2 broker.id=3 node.id=3 num.partitions=3
    listeners=PLAINTEXT://:1 advertised.listeners=PLAINTEXT://h:1 message.max.bytes=1000
    max.connections=1000 max.connections.per.ip=100 max.connections.per.ip.overrides=a
    max.connection.creation.rate=5 log.message.timestamp.type=CreateTime|x compression.type=zstd
    min.insync.replicas=1 unclean.leader.election.enable=true auto.create.topics.enable=false
    default.replication.factor=1 group.initial.rebalance.delay.ms=5 offsets.retention.minutes=5
    transaction.max.timeout.ms=5 transaction.partition.verification.enable=true
    producer.id.expiration.ms=9999 log.segment.bytes=1048576 log.roll.ms=5 log.flush.interval.ms=5
    log.cleanup.policy=compact log.local.retention.ms=-2 sasl.enabled.mechanisms=PLAIN
    leader.replication.throttled.rate=1000 follower.replication.throttled.rate=-1 cleanup.policy=delete
    max.incremental.fetch.session.cache.slots=5 remote.log.manager.thread.pool.size=5 quota.window.num=5
    group.consumer.session.timeout.ms=50000 group.max.size=5 no.such=1
""")
GROUP_CONFIGS = _configs("""
    consumer.session.timeout.ms=45000|1|60000|60001|x|-1 consumer.heartbeat.interval.ms=5000|1|15001|50000
    share.session.timeout.ms=45000|5 share.heartbeat.interval.ms=5000|5
    share.record.lock.duration.ms=15000|5|999999
    share.auto.offset.reset=latest|none|by_duration:PT1H|by_duration:x|LATEST
    share.isolation.level=read_committed|x share.delivery.count.limit=3
    share.partition.max.record.locks=500 share.renew.acknowledge.enable=true
    streams.session.timeout.ms=45000|5 streams.heartbeat.interval.ms=5000
    streams.num.standby.replicas=1|5|-1 streams.initial.rebalance.delay.ms=0 no.such=1
""")
METRICS_CONFIGS = _configs("""
    metrics=a.b| interval.ms=100|99|3600001 match=client_id=.*|zz=.*|client_id=([ no.such=1
""")
LOGGER_CONFIGS = _configs("""
    org.apache.kafka=INFO root=ZZ no.such.logger=INFO
""")


def creations(session: Session) -> None:
    def assigned(*rows: tuple[int, list[int]]) -> list[dict[str, Any]]:
        return [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in rows]

    assignments = {
        "one broker": assigned((0, [1]), (1, [1])),
        "gap": assigned((0, [1]), (2, [1])),
        "broker twice": assigned((0, [1, 1])),
        "unknown broker": assigned((0, [99])),
        "no broker": assigned((0, [])),
        "not from 0": assigned((1, [1])),
        "partition twice": assigned((0, [1]), (0, [1])),
        "negative broker": assigned((0, [-1])),
        "unequal": assigned((0, [1]), (1, [])),
    }
    for version in session.versions["CreateTopics"]:
        name = f"created-{version}"
        topic = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
        request: dict[str, Any] = {"Topics": [topic], "TimeoutMs": 10_000, "ValidateOnly": True}
        unplaced = {**request, "Topics": [{**topic, "NumPartitions": -1, "ReplicationFactor": -1}]}
        configs = _config_rows(TOPIC_CONFIGS)
        configs["twice"] = [{"Name": "retention.ms", "Value": value} for value in ("1", "2")]
        values: dict[str, Any] = {
            "Topics.Name": _NAMES,
            "Topics.NumPartitions": (3, 0, -1, -2, 100_001),
            "Topics.ReplicationFactor": (0, -1, -2, 2, 32767),
            "Topics.Assignments": {"one broker, counts given": assignments["one broker"]},
            "Topics.Configs": configs,
            "Topics": (
                [],
                [topic, topic],
                [topic, {**topic, "Name": "a/b"}, {**topic, "Name": "p", "NumPartitions": 0}],
            ),
        }
        session.vary("CreateTopics", version, request, values)
        session.vary("CreateTopics", version, unplaced, {"Topics.Assignments": assignments})
        for label, suffix, given in (
            ("new", "", {}),
            ("again", "", {}),
            ("again, validated", "", {"ValidateOnly": True}),
            ("dot", "-with.dot", {}),
            ("underscore for a dot", "-with_dot", {}),
            ("timeout 0", "-0", {"TimeoutMs": 0}),
            ("timeout -1", "-1", {"TimeoutMs": -1}),
        ):
            made = {**request, "ValidateOnly": False, "Topics": [{**topic, "Name": name + suffix}], **given}
            session.ask("CreateTopics", version, label, made)


def _config_rows(configs: dict[str, tuple[str | None, ...]], **given: Any) -> dict[str, list[dict[str, Any]]]:
    """Return a list of one config for each name and value, by a text of both."""
    return {
        f"{name}={value}": [{"Name": name, "Value": value, **given}]
        for name, values in configs.items()
        for value in values
    }


def metadata(session: Session) -> None:
    topic = session.topic("described", 2)
    known = session.id(topic)
    request = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
    rows = {
        "twice": [{"Name": topic}] * 2,
        "by id": [{"Name": None, "TopicId": known}],
        "by id and name": [{"Name": topic, "TopicId": known}],
        "unknown id": [{"Name": None, "TopicId": uuid.UUID(int=5)}],
        "no id and no name": [{"Name": None}],
        "id and another name": [{"Name": None, "TopicId": known}, {"Name": "unknown"}],
    }
    for version in session.versions["Metadata"]:
        names = {"Topics.Name": (*_NAMES[:8], "unknown", "a\n")}
        if version >= 4:
            session.vary("Metadata", version, request, names)
        session.ask("Metadata", version, "one", request)
        for label in rows if version >= 10 else ("twice",):
            session.ask("Metadata", version, label, {**request, "Topics": rows[label]})
        if version >= 1:
            session.ask("Metadata", version, "none", {**request, "Topics": []})
        operations = {"IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
        session.ask("Metadata", version, "operations", {**request, **operations})
        created = [{"Name": f"automatic-{version}"}]
        session.ask("Metadata", version, "creates", {"Topics": created, "AllowAutoTopicCreation": True})
    described: dict[str, Any] = {"Topics": [{"Name": topic}]}
    cursors = (("described", 1), ("described", 9), ("described", -1), ("zzz", 0))
    values: dict[str, Any] = {
        "Topics.Name": ("described", "unknown", "a/b", ""),
        "Topics": ([{"Name": topic}] * 2,),
        "ResponsePartitionLimit": (1, 0, -1, 5000),
        "Cursor": {
            f"{name} {index}": {"TopicName": name, "PartitionIndex": index} for name, index in cursors
        },
    }
    session.vary("DescribeTopicPartitions", 0, described, values)


def partitions(session: Session) -> None:
    topic = session.topic("grown", 2)
    brokers: Any = ([[1], [1]], [[1]], [[99]], [[]], [[1, 1]], [])
    row = {"Name": topic, "Count": 4, "Assignments": None}
    request: dict[str, Any] = {"Topics": [row], "TimeoutMs": 5000, "ValidateOnly": True}
    values: dict[str, Any] = {
        "Topics.Count": (3, 2, 1, 0, -1, 200_000),
        "Topics.Name": ("unknown", "a/b", ""),
        "Topics.Assignments": {str(ids): [{"BrokerIds": broker} for broker in ids] for ids in brokers},
        "Topics": ([], [row, {**row, "Count": 5}]),
    }
    for version in session.versions["CreatePartitions"]:
        session.vary("CreatePartitions", version, request, values)
        grown = {**request, "Topics": [{**row, "Count": 5 + version}], "ValidateOnly": False}
        session.ask("CreatePartitions", version, "more", grown)
    for version in session.versions["DeleteTopics"]:
        name, other = session.topic(f"deleted-{version}"), session.topic(f"deleted-too-{version}")
        values = {"TopicNames": (["unknown"], ["a/b"], [""], [], [name], [name], ["unknown"] * 2)}
        session.vary(
            "DeleteTopics",
            version,
            {"TimeoutMs": 5000},
            {"TopicNames": dict(enumerate(values["TopicNames"]))},
        )
        by_id = {"Name": None, "TopicId": session.id(other)}
        rows: Any = (
            *(
                [{"Name": "unknown"}],
                [{"Name": "a/b"}],
                [{"Name": None, "TopicId": uuid.UUID(int=8)}],
                [{"Name": None}],
            ),
            *(
                [{"Name": other, "TopicId": session.id(other)}],
                [{"Name": name}] * 2,
                [{"Name": other}, by_id],
            ),
            *([by_id], [by_id], [{"Name": name}], [{"Name": name}], []),
        )
        session.vary("DeleteTopics", version, {"TimeoutMs": 5000}, {"Topics": dict(enumerate(rows))})


def placement(session: Session) -> None:
    topic = session.topic("placed", 2)
    elected = {"TopicPartitions": [{"Topic": topic, "Partitions": [0]}], "TimeoutMs": 3000, "ElectionType": 0}
    values: dict[str, Any] = {
        "TopicPartitions.Topic": ("unknown", ""),
        "TopicPartitions.Partitions": ([99], [0, 1], []),
        "TopicPartitions": ([],),
    }
    for version in session.versions["ElectLeaders"]:
        for kind in (0, 1, 2, -1):
            session.vary("ElectLeaders", version, {**elected, "ElectionType": kind}, values, f"type {kind}")
    moved = {
        "Topics": [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Replicas": [1]}]}],
        "TimeoutMs": 3000,
    }
    values = {
        "Topics.Partitions.Replicas": ([1], None, [99], [], [1, 1], [-1], [1, 99]),
        "Topics.Partitions.PartitionIndex": (99,),
        "Topics.Partitions": ([],),
        "Topics.Name": ("unknown", "a/b"),
        "Topics": ([],),
    }
    for version in session.versions["AlterPartitionReassignments"]:
        session.vary("AlterPartitionReassignments", version, moved, values)
    listed = {"Topics": [{"Name": topic, "PartitionIndexes": [0]}], "TimeoutMs": 1000}
    session.vary(
        "ListPartitionReassignments", 0, listed, {"Topics": (None, []), "Topics.Name": ("unknown", topic)}
    )
    described = {"Topics": [{"Topic": topic, "Partitions": [0]}]}
    values = {"Topics": ([],), "Topics.Topic": ("unknown", topic), "Topics.Partitions": ([99], [])}
    for version in session.versions["DescribeLogDirs"]:
        hide = ("LogDir", "TotalBytes", "UsableBytes", "PartitionSize")
        session.vary("DescribeLogDirs", version, described, values, hide=hide)


# Operations on one topic, one after the other: config, operation, value.
_ALTERATIONS = (
    *(("retention.ms", _SET, "5000"), ("retention.ms", _APPEND, "1"), ("retention.ms", _SUBTRACT, "1")),
    *(
        ("cleanup.policy", _APPEND, "compact"),
        ("cleanup.policy", _APPEND, "compact"),
        ("cleanup.policy", _APPEND, "zz"),
    ),
    *(("cleanup.policy", _SUBTRACT, "compact"), ("cleanup.policy", _SUBTRACT, "compact")),
    *(
        ("cleanup.policy", _SUBTRACT, "delete"),
        ("retention.ms", _DELETE, None),
        ("retention.ms", _DELETE, None),
    ),
    *(
        ("no.such", _DELETE, None),
        ("retention.ms", 9, "1"),
        ("retention.ms", -1, "1"),
        ("retention.ms", _DELETE, "5"),
    ),
)


def alterations(session: Session) -> None:
    topic = session.topic("configured")
    for version in session.versions["IncrementalAlterConfigs"]:

        def alter(
            kind: int, name: str, configs: dict[str, Any], label: str, *, validate: bool = True
        ) -> None:
            resource = {"ResourceType": kind, "ResourceName": name, "Configs": []}
            request = {"Resources": [resource], "ValidateOnly": validate}
            session.vary("IncrementalAlterConfigs", version, request, {"Resources.Configs": configs}, label)  # noqa: B023 - called at once

        for kind, name, label, configs in (
            (TOPIC, topic, "topic", TOPIC_CONFIGS),
            (BROKER, NODE, "broker", BROKER_CONFIGS),
            (BROKER, "", "cluster", BROKER_CONFIGS),
            (GROUP, "configured-group", "group", GROUP_CONFIGS),
            (METRICS, "metrics", "metrics", METRICS_CONFIGS),
            (LOGGER, NODE, "logger", LOGGER_CONFIGS),
        ):
            alter(kind, name, _config_rows(configs, ConfigOperation=_SET), label)
        steps = {
            f"{place}: {name} {operation} {value}": [
                {"Name": name, "ConfigOperation": operation, "Value": value}
            ]
            for place, (name, operation, value) in enumerate(_ALTERATIONS)
        }
        alter(TOPIC, topic, steps, "topic, set", validate=False)
        one = [{"Name": "retention.ms", "ConfigOperation": _SET, "Value": "1"}]
        alter(TOPIC, topic, {"twice": one * 2, "none": []}, "topic")
        for kind, name in (
            *(
                (TOPIC, "unknown"),
                (TOPIC, "a/b"),
                (TOPIC, ""),
                (BROKER, "99"),
                (BROKER, "abc"),
                (BROKER, "-1"),
            ),
            *((GROUP, ""), (LOGGER, "99"), (METRICS, "")),
            *((number, "x") for number in (0, 1, 3, 5, 64, 127)),
        ):
            alter(kind, name, {"one": one}, f"type {kind} {name!r}")
        twice = [{"ResourceType": TOPIC, "ResourceName": topic, "Configs": []}] * 2
        session.vary("IncrementalAlterConfigs", version, {"ValidateOnly": True}, {"Resources": (twice, [])})


def replacements(session: Session) -> None:
    topic = session.topic("replaced")
    for version in session.versions["AlterConfigs"]:
        for kind, name, text in (
            (TOPIC, topic, "retention.ms=7000|x|null zz=5"),
            (TOPIC, "unknown", "retention.ms=5"),
            (BROKER, NODE, "log.retention.ms=5 node.id=5"),
            (BROKER, "", "log.retention.ms=5"),
            (LOGGER, NODE, "root=INFO"),
            (0, "x", "a=1"),
            (GROUP, "configured-group", "consumer.session.timeout.ms=45000"),
            (METRICS, "metrics", "interval.ms=1000"),
        ):
            resource = {"ResourceType": kind, "ResourceName": name}
            rows = _config_rows(_configs(text))
            request = {"Resources": [resource], "ValidateOnly": True}
            session.vary(
                "AlterConfigs", version, request, {"Resources.Configs": rows}, f"type {kind} {name!r}"
            )


def descriptions(session: Session) -> None:
    topic = session.topic("shown", configs={"retention.ms": "5000"})
    resources = {
        **{f"topic {keys}": (TOPIC, topic, keys) for keys in (None, ["retention.ms"], ["zz"], [])},
        **{f"topic {name!r}": (TOPIC, name, None) for name in ("unknown", "a/b", "")},
        **{f"broker {name!r}": (BROKER, name, ["log.retention.ms"]) for name in (NODE, "", "99", "abc")},
        **{f"group {name!r}": (GROUP, name, None) for name in ("shown-group", "")},
        **{f"metrics {name!r}": (METRICS, name, None) for name in ("cm", "")},
        **{f"logger {name!r}": (LOGGER, name, ["root"]) for name in (NODE, "99")},
        **{f"type {kind}": (kind, "x", None) for kind in (0, 9)},
    }
    rows = {
        label: [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}]
        for label, (kind, name, keys) in resources.items()
    }
    for version in session.versions["DescribeConfigs"]:
        values = {"Resources": {**rows, "none": []}}
        session.vary("DescribeConfigs", version, {"IncludeSynonyms": True}, values, hide=("Documentation",))
    for version in session.versions["ListConfigResources"]:
        session.vary(
            "ListConfigResources", version, {}, {"ResourceTypes": ([BROKER], [LOGGER], [GROUP], [0], [99])}
        )


ROOM = [creations, metadata, partitions, placement, alterations, replacements, descriptions]
