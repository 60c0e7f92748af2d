"""The configs of a topic: a row for each, most of which inherit definition and default from a setting of the broker.

Names, types and limits are Kafka's (its documentation, "Topic-Level Configs"); `storage.*`, `redis.placement`,
`lake.*`, `max.message.records` and `offset.*` are Korvet's own. Some of Kafka's have no effect on Redis
Streams: they are accepted, kept and listed, so that tools which set them work.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from korvet.config import values
from korvet.config.broker_configs import BROKER_CONFIGS
from korvet.config.definition import ConfigDef
from korvet.protocol.types import ConfigType

_SAME = (
    "compression.gzip.level compression.lz4.level compression.type compression.zstd.level min.insync.replicas "
    "offset.encoding offset.sequence.bits redis.placement storage.compression storage.format "
    "unclean.leader.election.enable"
)
"""Configs of a topic that are called as the broker's setting."""
_OF_LOG = (
    "cleanup.policy local.retention.bytes local.retention.ms message.timestamp.after.max.ms "
    "message.timestamp.before.max.ms message.timestamp.type preallocate retention.bytes retention.ms segment.bytes"
)
"""Those whose setting begins with `log.`."""
_INHERITED = {
    **{name: name for name in _SAME.split()},
    **{name: f"log.{name}" for name in _OF_LOG.split()},
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "max.message.records": "message.max.records",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""The broker's setting that counts for a topic on which a config is not set."""

_OWN_LEAST = {"retention.ms": -1}
_OWN_DOC = {
    "local.retention.bytes": (
        "Bytes that a partition of an archived topic keeps in Redis; -2: as many as `retention.bytes`."
    ),
    "local.retention.ms": "How long an archived topic keeps records in Redis; -2: as long as `retention.ms`.",
    "retention.ms": "How long records are kept; -1: without limit.",
    "redis.placement": "Placement of the partitions on the masters of a Redis Cluster: `name` by the hash of each "
    "partition's name, `even` with the same number of partitions on each.",
}

FIXED_AT_CREATION = frozenset(
    {"offset.encoding", "offset.sequence.bits", "redis.placement", "storage.format"}
)
"""They decide how the log is laid out, so a topic keeps the values it was created with."""

SLOT_TAGS = ConfigDef(
    "Slot tags of the partitions, three characters each: the stream of partition 0 is korvet:orders:0:{tag}.",
    name="redis.slot.tags",
)
"""Described for topics that have tags, and no config that can be set: the broker chooses them."""


def _inherited() -> Iterator[ConfigDef]:
    for name, setting in _INHERITED.items():
        definition = BROKER_CONFIGS[setting]
        yield replace(
            definition,
            name=name,
            inherits=setting,
            doc=_OWN_DOC.get(name, definition.doc),
            dynamic=name not in FIXED_AT_CREATION,
            least=_OWN_LEAST.get(name, definition.least),
        )


def _flag(name: str, doc: str) -> ConfigDef:
    return ConfigDef(doc, name=name, type=ConfigType.BOOLEAN, default=False, dynamic=True)


def _throttled(role: str) -> ConfigDef:
    return ConfigDef(
        f"Replicas whose copying Kafka throttles at the {role}. Has no effect here.",
        name=f"{role}.replication.throttled.replicas",
        form=values.throttled_replicas,
        type=ConfigType.LIST,
        dynamic=True,
    )


_OWN = (
    ConfigDef(
        "Partitioning of the topic's table in the archive, fixed when the topic is archived for the "
        "first time: by the topic's partitions, or also by the dates of records.",
        name="lake.partitioning",
        default="partition",
        choices=("partition", "date"),
        dynamic=True,
    ),
    _flag(
        "remote.log.copy.disable",
        "Archive no more records; Redis then keeps records as `retention.ms` and `retention.bytes` say.",
    ),
    _flag(
        "remote.log.delete.on.disable",
        "Whether Kafka empties the remote tier when it is switched off. Has no effect here.",
    ),
    _flag(
        "remote.storage.enable",
        "Archive the topic; Redis then keeps only its newest records.",
    ),
    _throttled("follower"),
    _throttled("leader"),
)

TOPIC_CONFIGS = {item.name: item for item in sorted((*_inherited(), *_OWN), key=lambda item: item.name)}
"""The definitions by name, in order of the names."""
