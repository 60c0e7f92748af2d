"""The table of topic configs: which names exist, what types and limits they have, and where their defaults are from.

Knows names and limits only; nothing of what the broker makes of a value. Names, types and limits are Kafka's
(documentation, "Topic-Level Configs"); `storage.*` and `offset.sequence.bits` are Korvet's own. Some of Kafka's have no
meaning on Redis Streams: they are accepted, kept and listed, so that tools which set them work. Values whose behaviour
is not built are refused by name.

A config as clients are told of it: its value, and the chain of places that it may come from (KIP-226).

Knows the layers of a broker's settings and the numbers of DescribeConfigs; nothing of topics, Redis or messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from korvet.config.dynamic import Layers, dynamic_rows
from korvet.config.settings import ConfigKey, rows
from korvet.protocol.types import ConfigSource, ConfigType

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class TopicConfigDef(msgspec.Struct, frozen=True, kw_only=True):
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


def _limit(name: str, setting: str, least: int, documentation: str = "") -> TopicConfigDef:
    return TopicConfigDef(
        name=name, type=ConfigType.LONG, setting=setting, least=least, documentation=documentation
    )


def _meaningless(
    name: str, documentation: str, default: str, least: float, most: float = LONG_MAX
) -> TopicConfigDef:
    return TopicConfigDef(
        name=name,
        type=ConfigType.INT if most == INT_MAX else ConfigType.LONG,
        default=default,
        least=least,
        most=most,
        meaningless=True,
        documentation=documentation,
    )


def _throttled(whose: str) -> TopicConfigDef:
    return TopicConfigDef(
        name=f"{whose}.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        meaningless=True,
        documentation=f"Replicas whose copying Kafka throttles at the {whose}.",
    )


def _off_only(name: str, documentation: str) -> TopicConfigDef:
    return TopicConfigDef(
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

DEFINITIONS: dict[str, TopicConfigDef] = {
    each.name: each
    for each in (
        TopicConfigDef(
            name="cleanup.policy",
            type=ConfigType.LIST,
            setting="log.cleanup.policy",
            choices=("compact", "delete"),
        ),
        TopicConfigDef(
            name="compression.type",
            type=ConfigType.STRING,
            setting="compression.type",
            choices=(*_CODECS, "uncompressed", "producer"),
        ),
        TopicConfigDef(
            name="max.message.bytes", type=ConfigType.INT, setting="message.max.bytes", least=0, most=INT_MAX
        ),
        TopicConfigDef(
            name="message.timestamp.type",
            type=ConfigType.STRING,
            setting="log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
        ),
        TopicConfigDef(
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
        TopicConfigDef(
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
        TopicConfigDef(
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
        TopicConfigDef(
            name="storage.compression",
            type=ConfigType.STRING,
            setting="storage.compression",
            choices=_AT_REST_CODECS,
        ),
        TopicConfigDef(
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
        TopicConfigDef(
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
        TopicConfigDef(
            name="unclean.leader.election.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=_BOOLEANS,
            meaningless=True,
            documentation="Whether a replica of Kafka's that lacks records may lead.",
        ),
    )
}


class Synonym(msgspec.Struct, frozen=True):
    """One place: the name and the value that it has there; a sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A config as it stands. Of its synonyms the first one counts; those behind it would if it were not there."""

    name: str
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str
    read_only: bool = False
    sensitive: bool = False

    @property
    def value(self) -> str | None:
        """The value that counts; None where it is sensitive."""
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        """Where that comes from."""
        return self.synonyms[0].source


def listed(text: str) -> list[str]:
    """Return the parts of a list with commas between."""
    return [part.strip() for part in text.split(",")] if text else []


def chain(row: ConfigKey, layers: Layers) -> tuple[Synonym, ...]:
    """Return where the value of a setting comes from, what counts first.

    A setting that was given to the broker as it is by default is not told apart from one that was not given.
    """
    texts = []
    if row.name in layers.broker:
        texts.append((layers.broker[row.name], ConfigSource.BROKER))
    if row.name in layers.cluster:
        texts.append((layers.cluster[row.name], ConfigSource.CLUSTER))
    if row.attribute and row.of(layers.static) != row.default:
        texts.append((row.shown(row.of(layers.static)), ConfigSource.STATIC))
    texts.append((row.shown(row.default), ConfigSource.DEFAULT))
    return tuple(Synonym(row.name, _told(row, text), source) for text, source in texts)


def _told(row: ConfigKey, text: str) -> str | None:
    if row.about.secret:
        return None
    return ",".join(listed(text)) if row.is_list else text


def broker_entries(layers: Layers) -> list[ConfigEntry]:
    """Return all settings of a broker by name."""
    every = {row.name: row for row in rows()} | dynamic_rows()
    return [_entry(row, chain(row, layers)) for _, row in sorted(every.items())]


def cluster_entries(layers: Layers) -> list[ConfigEntry]:
    """Return what was set for all brokers, by name, and nothing of any broker's own."""
    found = []
    for name, row in sorted(dynamic_rows().items()):
        if name in layers.cluster:
            synonym = Synonym(name, _told(row, layers.cluster[name]), _OF_CLUSTER)
            found.append(_entry(row, (synonym,)))
    return found


_OF_CLUSTER = ConfigSource.CLUSTER


def _entry(row: ConfigKey, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    return ConfigEntry(
        name=row.name,
        synonyms=synonyms,
        type=_type(row),
        documentation=row.about.doc,
        read_only=not row.about.dynamic,
        sensitive=row.about.secret,
    )


def _type(row: ConfigKey) -> ConfigType:
    if row.about.secret:
        return ConfigType.PASSWORD
    if row.is_list:
        return ConfigType.LIST
    if row.kind is int:
        return ConfigType.INT if row.about.most <= INT_MAX else ConfigType.LONG
    return {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, str: ConfigType.STRING}[row.kind]
