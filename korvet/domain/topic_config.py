"""The configuration of a topic: which names exist, what values they take, and what the broker makes of them.

Knows the table of topic configs and how overrides, broker settings and defaults lie one upon the other; nothing of
Redis or messages. Names and types are Kafka's (documentation, "Topic-Level Configs"); `storage.*` and
`offset.sequence.bits` are Korvet's own. Some of Kafka's have no meaning on Redis Streams: they are accepted, kept
and listed, so that tools which set them work. Values whose behaviour is not built are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Literal

import msgspec

from korvet.config import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec
from korvet.storage.entry import AtRest

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


class ConfigSource(IntEnum):
    """Where a value comes from (DescribeConfigs and CreateTopics, `config_source`)."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One topic config.

    `setting` names the broker setting that gives the default where `default` is None. `refused` maps values that
    Kafka knows to why Korvet does not take them (yet); `meaningless` says that nothing here acts on the value.
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


def _meaningless(name: str, default: str, least: float, most: float = LONG_MAX) -> Definition:
    kind = ConfigType.INT if most == INT_MAX else ConfigType.LONG
    return Definition(name=name, type=kind, default=default, least=least, most=most, meaningless=True)


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
"""Python takes more for a number than the clients that read the configuration back: 1_000, or other scripts' digits."""

_NOT_BUILT = "is not supported yet"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_FORMATS: tuple[Literal["record", "batch"], ...] = ("record", "batch")
_BOOLEANS = ("true", "false")
_AT_REST_CODECS: dict[str, Literal["none", "lz4", "zstd"]] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}

DEFINITIONS: dict[str, Definition] = {
    each.name: each
    for each in (
        Definition(
            name="cleanup.policy",
            type=ConfigType.LIST,
            default="delete",
            choices=("delete",),
            refused={"compact": _NOT_BUILT, "compact,delete": _NOT_BUILT, "delete,compact": _NOT_BUILT},
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
            choices=("CreateTime",),
            refused={"LogAppendTime": _NOT_BUILT},
        ),
        Definition(
            name="offset.sequence.bits",
            type=ConfigType.INT,
            setting="offset.sequence.bits",
            least=8,
            most=12,
        ),
        Definition(
            name="remote.storage.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=("false",),
            refused={"true": _NOT_BUILT},
        ),
        Definition(name="retention.bytes", type=ConfigType.LONG, setting="log.retention.bytes", least=-1),
        Definition(name="retention.ms", type=ConfigType.LONG, setting="log.retention.ms", least=-1),
        Definition(
            name="storage.compression",
            type=ConfigType.STRING,
            setting="storage.compression",
            choices=tuple(_AT_REST_CODECS),
        ),
        Definition(
            name="storage.format",
            type=ConfigType.STRING,
            setting="storage.format",
            choices=_FORMATS,
        ),
        # What follows belongs to segments, replicas and cleaners of Kafka's own log.
        _meaningless("compression.gzip.level", "-1", -1, INT_MAX),
        _meaningless("compression.lz4.level", "9", 1, INT_MAX),
        _meaningless("compression.zstd.level", "3", -131072, INT_MAX),
        _meaningless("delete.retention.ms", "86400000", 0),
        _meaningless("file.delete.delay.ms", "60000", 0),
        _meaningless("flush.messages", str(LONG_MAX), 1),
        _meaningless("flush.ms", str(LONG_MAX), 0),
        Definition(
            name="follower.replication.throttled.replicas", type=ConfigType.LIST, default="", meaningless=True
        ),
        _meaningless("index.interval.bytes", "4096", 0, INT_MAX),
        Definition(
            name="leader.replication.throttled.replicas", type=ConfigType.LIST, default="", meaningless=True
        ),
        _meaningless("local.retention.bytes", "-2", -2),
        _meaningless("local.retention.ms", "-2", -2),
        _meaningless("max.compaction.lag.ms", str(LONG_MAX), 1),
        _meaningless("message.timestamp.after.max.ms", "3600000", 0),
        _meaningless("message.timestamp.before.max.ms", str(LONG_MAX), 0),
        Definition(
            name="min.cleanable.dirty.ratio",
            type=ConfigType.DOUBLE,
            default="0.5",
            least=0,
            most=1,
            meaningless=True,
        ),
        _meaningless("min.compaction.lag.ms", "0", 0),
        _meaningless("min.insync.replicas", "1", 1, INT_MAX),
        Definition(
            name="preallocate", type=ConfigType.BOOLEAN, default="false", choices=_BOOLEANS, meaningless=True
        ),
        _meaningless("segment.bytes", "1073741824", 14, INT_MAX),
        _meaningless("segment.index.bytes", "10485760", 4, INT_MAX),
        _meaningless("segment.jitter.ms", "0", 0),
        _meaningless("segment.ms", "604800000", 1),
        Definition(
            name="unclean.leader.election.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            choices=_BOOLEANS,
            meaningless=True,
        ),
    )
}


FIXED_AT_CREATION = frozenset({"offset.sequence.bits", "storage.format"})
"""They say how the log is laid out, so a topic keeps the values it was made with."""


class ConfigEntry(msgspec.Struct, frozen=True):
    """A topic config as it stands: its value as text and where that comes from."""

    name: str
    value: str
    source: ConfigSource


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker acts on, typed. Sizes in bytes, times in milliseconds; retention -1 is without a limit."""

    codec: Codec
    max_message_bytes: int
    sequence_bits: int
    format: Literal["record", "batch"]
    recompress: bool
    """Whether a batch in another codec is compressed anew when it is appended in format `batch`."""
    at_rest: AtRest
    retention_ms: int
    retention_bytes: int


def check_override(name: str, value: str | None) -> str:
    """Return `value` as it is to be kept for the topic config `name`.

    Raises KafkaError INVALID_CONFIG, saying what is wrong: an unknown name, no value, a value of another type, out
    of range, or known to Kafka but not to Korvet.
    """
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic config: {name}")
    text = value.strip()
    if text in definition.refused:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} {definition.refused[text]}")
    if definition.choices and text not in definition.choices:
        allowed = ", ".join(definition.choices)
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not one of: {allowed}")
    if definition.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        _check_number(definition, text)
    return text


def _check_number(definition: Definition, text: str) -> None:
    name = definition.name
    form = _NUMBER if definition.type is ConfigType.DOUBLE else _INTEGER
    if not form.fullmatch(text):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not a number")
    number = float(text) if definition.type is ConfigType.DOUBLE else int(text)
    least = definition.least if definition.least is not None else -LONG_MAX - 1
    most = definition.most if definition.most is not None else LONG_MAX
    if not least <= number <= most:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not between {least} and {most}")


def entries(overrides: Mapping[str, str], settings: Settings) -> list[ConfigEntry]:
    """Return every topic config by name with its effective value: the override, else the broker's, else Kafka's."""
    found = []
    for name, definition in sorted(DEFINITIONS.items()):
        if name in overrides:
            found.append(ConfigEntry(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        elif definition.default is None:
            value = str(getattr(settings, definition.setting.replace(".", "_")))
            found.append(ConfigEntry(name, value, ConfigSource.DEFAULT_CONFIG))
        else:
            found.append(ConfigEntry(name, definition.default, ConfigSource.DEFAULT_CONFIG))
    return found


def effective(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    """Return what the broker acts on for a topic with these overrides."""
    values = {entry.name: entry.value for entry in entries(overrides, settings)}
    compression = values["compression.type"]
    return TopicConfig(
        # The stored records do not tell which codec each producer used; both of these mean uncompressed here.
        codec=Codec.none if compression in ("producer", "uncompressed") else Codec[compression],
        max_message_bytes=int(values["max.message.bytes"]),
        sequence_bits=int(values["offset.sequence.bits"]),
        format="batch" if values["storage.format"] == "batch" else "record",
        recompress=compression not in ("none", "producer"),
        at_rest=AtRest(
            _AT_REST_CODECS[values["storage.compression"]], settings.storage_compression_min_bytes
        ),
        retention_ms=int(values["retention.ms"]),
        retention_bytes=int(values["retention.bytes"]),
    )
