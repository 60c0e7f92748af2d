"""The configs of a topic: a row for each, most of which inherit definition and default from a setting of the broker.

Names, types and limits are Kafka's (its documentation, "Topic-Level Configs"); `storage.*`, `redis.placement`,
`lake.*`, `max.message.records` and `offset.sequence.bits` are Korvet's own. Some of Kafka's have no effect on Redis
Streams: they are accepted, kept and listed, so that tools which set them work.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from korvet.config.definition import INT32_MAX, INT64_MAX, ConfigDef
from korvet.config.settings import SETTINGS
from korvet.protocol.types import ConfigType

# Config of a topic -> setting of the broker.
_INHERITED = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "max.message.records": "message.max.records",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "offset.sequence.bits": "offset.sequence.bits",
    "redis.placement": "redis.placement",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.ms": "log.roll.ms",
    "storage.compression": "storage.compression",
    "storage.format": "storage.format",
}
_OWN_DOC = {
    "local.retention.bytes": "Bytes that a partition with a remote tier keeps in Redis; -2 is retention.bytes.",
    "local.retention.ms": "How long a topic with a remote tier keeps records in Redis; -2 is retention.ms.",
    "redis.placement": "How partitions come to the masters of a Redis Cluster: by the names of their streams, or as "
    "many to each as to any other, give or take one.",
}

FIXED_AT_CREATION = frozenset({"offset.sequence.bits", "redis.placement", "storage.format"})
"""They decide how the log is laid out, so a topic keeps the values it was created with."""

SLOT_TAGS = ConfigDef(
    "Slot tags of the partitions, three characters each: the stream of partition 0 is korvet:orders:0:{tag}.",
    name="redis.slot.tags",
)
"""Described for topics that have tags, and no config that can be set: the broker chooses them."""


def _inherited() -> Iterator[ConfigDef]:
    for name, setting in _INHERITED.items():
        definition = SETTINGS[setting]
        yield replace(
            definition,
            name=name,
            inherits=setting,
            doc=_OWN_DOC.get(name, definition.doc),
            dynamic=name not in FIXED_AT_CREATION,
        )


def _flag(name: str, doc: str, *, not_yet: bool = False) -> ConfigDef:
    return ConfigDef(
        doc,
        name=name,
        type=ConfigType.BOOLEAN,
        default=False,
        dynamic=True,
        not_yet=("true",) if not_yet else (),
    )


def _without_effect(definition: ConfigDef) -> ConfigDef:
    return replace(definition, doc=f"{definition.doc} Has no effect here.")


def _number(name: str, doc: str, default: int, least: int, most: int = INT64_MAX) -> ConfigDef:
    config_type = ConfigType.INT if most == INT32_MAX else ConfigType.LONG
    return _without_effect(
        ConfigDef(doc, least, most, name=name, type=config_type, default=default, dynamic=True)
    )


def _throttled(role: str) -> ConfigDef:
    doc = f"Replicas whose copying Kafka throttles at the {role}."
    name = f"{role}.replication.throttled.replicas"
    return _without_effect(ConfigDef(doc, name=name, type=ConfigType.LIST, dynamic=True))


_OWN = (
    ConfigDef(
        "How the topic's table is partitioned that is created when the topic is archived for the first time: by the "
        "topic's partitions, or by the dates of records too.",
        name="lake.partitioning",
        default="partition",
        choices=("partition", "date"),
        dynamic=True,
    ),
    _flag("remote.log.copy.disable", "Whether nothing more is copied to the remote tier.", not_yet=True),
    _flag(
        "remote.log.delete.on.disable",
        "Whether the remote tier is emptied when it is switched off.",
        not_yet=True,
    ),
    _flag(
        "remote.storage.enable",
        "Whether the topic is archived, so that Redis need keep only its newest records.",
    ),
    # What follows belongs to segments and replicas of Kafka's own log.
    _number("compression.gzip.level", "Kafka's effort with gzip.", -1, -1, INT32_MAX),
    _number("compression.lz4.level", "Kafka's effort with lz4.", 9, 1, INT32_MAX),
    _number("compression.zstd.level", "Kafka's effort with zstd.", 3, -131072, INT32_MAX),
    _number("file.delete.delay.ms", "How long Kafka keeps files of deleted logs.", 60000, 0),
    _number("flush.messages", "Records after which Kafka writes its log to disk.", INT64_MAX, 1),
    _number("flush.ms", "Time after which Kafka writes its log to disk.", INT64_MAX, 0),
    _throttled("follower"),
    _number("index.interval.bytes", "Bytes between two rows of Kafka's index.", 4096, 0, INT32_MAX),
    _throttled("leader"),
    _without_effect(_flag("preallocate", "Whether Kafka allocates the whole file of a segment at once.")),
    _number("segment.bytes", "Size of the files of Kafka's log.", 1073741824, 14, INT32_MAX),
    _number("segment.index.bytes", "Size of the files of Kafka's index.", 10485760, 4, INT32_MAX),
    _number("segment.jitter.ms", "How far Kafka spreads the ages of segments.", 0, 0),
    _without_effect(
        _flag("unclean.leader.election.enable", "Whether a replica of Kafka's that lacks records may lead.")
    ),
)

TOPIC_CONFIGS = {each.name: each for each in sorted((*_inherited(), *_OWN), key=lambda each: each.name)}
"""The definitions by name, in order of the names."""
