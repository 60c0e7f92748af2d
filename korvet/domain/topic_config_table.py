"""The table of topic configs: which names exist, what types and limits they have, and where their defaults are from.

Knows names and limits only; nothing of what the broker makes of a value. Names, types and limits are Kafka's
(documentation, "Topic-Level Configs"); `storage.*` and `offset.sequence.bits` are Korvet's own. Some of Kafka's have no
meaning on Redis Streams: they are accepted, kept and listed, so that tools which set them work. Values whose behaviour
is not built are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import msgspec

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The type numbers of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One topic config.

    `setting` names the broker setting that gives the default where `default` is None. `refused` maps values that
    Kafka knows to why Korvet does not take them (yet); `meaningless` says that nothing here acts on the value.
    `documentation` says what it is where that is not what the setting is.
    """

    name: str
    type: ConfigType
    default: str | None = None
    setting: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    meaningless: bool = False
    documentation: str = ""


def _limit(name: str, setting: str, least: int, documentation: str = "") -> Definition:
    return Definition(
        name=name, type=ConfigType.LONG, setting=setting, least=least, documentation=documentation
    )


def _meaningless(
    name: str, documentation: str, default: str, least: float, most: float = LONG_MAX
) -> Definition:
    return Definition(
        name=name,
        type=ConfigType.INT if most == INT_MAX else ConfigType.LONG,
        default=default,
        least=least,
        most=most,
        meaningless=True,
        documentation=documentation,
    )


def _throttled(whose: str) -> Definition:
    return Definition(
        name=f"{whose}.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        meaningless=True,
        documentation=f"Replicas whose copying Kafka throttles at the {whose}.",
    )


def _off_only(name: str, documentation: str) -> Definition:
    return Definition(
        name=name,
        type=ConfigType.BOOLEAN,
        default="false",
        choices=("false",),
        refused={"true": _NOT_BUILT},
        documentation=documentation,
    )


_NOT_BUILT = "is not supported yet"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_FORMATS = ("record", "batch")
_BOOLEANS = ("true", "false")
_AT_REST_CODECS = ("none", "lz4", "zstd")

DEFINITIONS: dict[str, Definition] = {
    each.name: each
    for each in (
        Definition(
            name="cleanup.policy",
            type=ConfigType.LIST,
            setting="log.cleanup.policy",
            choices=("compact", "delete"),
        ),
        Definition(
            name="compression.type",
            type=ConfigType.STRING,
            setting="compression.type",
            choices=(*_CODECS, "uncompressed", "producer"),
        ),
        Definition(
            name="max.message.bytes", type=ConfigType.INT, setting="message.max.bytes", least=0, most=INT_MAX
        ),
        Definition(
            name="message.timestamp.type",
            type=ConfigType.STRING,
            setting="log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
        ),
        Definition(
            name="offset.sequence.bits",
            type=ConfigType.INT,
            setting="offset.sequence.bits",
            least=8,
            most=12,
        ),
        _off_only("remote.log.copy.disable", "Whether nothing more is copied to the cold tier."),
        _off_only(
            "remote.log.delete.on.disable", "Whether the cold tier is emptied when it is switched off."
        ),
        Definition(
            name="remote.storage.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=_BOOLEANS,
            documentation="Whether the topic is archived, so that Redis need keep only its newest records.",
        ),
        _limit("delete.retention.ms", "log.cleaner.delete.retention.ms", 0),
        _limit(
            "local.retention.bytes",
            "log.local.retention.bytes",
            -2,
            "Bytes that a partition with a cold tier keeps in Redis; -2 is retention.bytes.",
        ),
        _limit(
            "local.retention.ms",
            "log.local.retention.ms",
            -2,
            "How long a topic with a cold tier keeps records in Redis; -2 is retention.ms.",
        ),
        _limit("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", 1),
        _limit("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", 0),
        _limit("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", 0),
        Definition(
            name="min.cleanable.dirty.ratio",
            type=ConfigType.DOUBLE,
            setting="log.cleaner.min.cleanable.ratio",
            least=0,
            most=1,
        ),
        _limit("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", 0),
        _limit("retention.bytes", "log.retention.bytes", -1),
        _limit("retention.ms", "log.retention.ms", -1),
        _limit("segment.ms", "log.roll.ms", 1),
        Definition(
            name="storage.compression",
            type=ConfigType.STRING,
            setting="storage.compression",
            choices=_AT_REST_CODECS,
        ),
        Definition(
            name="storage.format",
            type=ConfigType.STRING,
            setting="storage.format",
            choices=_FORMATS,
        ),
        # What follows belongs to segments and replicas of Kafka's own log.
        _meaningless("compression.gzip.level", "Kafka's effort with gzip.", "-1", -1, INT_MAX),
        _meaningless("compression.lz4.level", "Kafka's effort with lz4.", "9", 1, INT_MAX),
        _meaningless("compression.zstd.level", "Kafka's effort with zstd.", "3", -131072, INT_MAX),
        _meaningless("file.delete.delay.ms", "How long Kafka keeps files of deleted logs.", "60000", 0),
        _meaningless("flush.messages", "Records after which Kafka writes its log to disk.", str(LONG_MAX), 1),
        _meaningless("flush.ms", "Time after which Kafka writes its log to disk.", str(LONG_MAX), 0),
        _throttled("follower"),
        _meaningless("index.interval.bytes", "Bytes between two rows of Kafka's index.", "4096", 0, INT_MAX),
        _throttled("leader"),
        _meaningless(
            "min.insync.replicas",
            "Replicas of Kafka's that must have a record; the setting replicas counts those of Redis.",
            "1",
            1,
            INT_MAX,
        ),
        Definition(
            name="preallocate",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=_BOOLEANS,
            meaningless=True,
            documentation="Whether Kafka takes the whole place of a segment at once.",
        ),
        _meaningless("segment.bytes", "Size of the files of Kafka's log.", "1073741824", 14, INT_MAX),
        _meaningless("segment.index.bytes", "Size of the files of Kafka's index.", "10485760", 4, INT_MAX),
        _meaningless("segment.jitter.ms", "How far Kafka spreads the ages of segments.", "0", 0),
        Definition(
            name="unclean.leader.election.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=_BOOLEANS,
            meaningless=True,
            documentation="Whether a replica of Kafka's that lacks records may lead.",
        ),
    )
}
