"""The configuration of a topic: whether values may be given, and what the broker makes of them.

Knows how overrides, broker settings and defaults lie one upon the other, and which values contradict each other;
nothing of Redis or messages. Which configs there are is the table's (topic_config_table.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import msgspec

from korvet import logs
from korvet.config.dynamic import Layers
from korvet.config.settings import ConfigKey, Settings, rows
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec
from korvet.protocol.types import ConfigSource, ConfigType
from korvet.topics.config_defs import (
    DEFINITIONS,
    LONG_MAX,
    ConfigEntry,
    Synonym,
    TopicConfigDef,
    chain,
    listed,
)
from korvet.topics.types import AtRest

_log = logs.Log(__name__)

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")
"""Python takes more for a number than the clients that read the configuration back: 1_000, or other scripts' digits."""

_AT_REST_CODECS: dict[str, Literal["none", "lz4", "zstd"]] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}

AS_RETENTION = -2
"""What local.retention.* says where the cold tier changes nothing about how long Redis keeps records."""


VALUE_BYTES_MAX = 32_767
"""The bound of a text on the wire: what is longer, as a list that is appended to may be, could be told to nobody."""

FIXED_AT_CREATION = frozenset({"offset.sequence.bits", "storage.format"})
"""They say how the log is laid out, so a topic keeps the values it was made with."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker acts on, typed. Sizes in bytes, times in milliseconds; retention -1 is without a limit."""

    codec: Codec
    max_message_bytes: int
    sequence_bits: int
    format: Literal["record", "batch"]
    recompress: bool
    """Whether a batch in another codec is compressed anew when it is appended in format `batch`."""
    at_rest: AtRest
    compact: bool
    """Whether only the latest record of each key is kept; records without a key are refused then."""
    delete: bool
    """Whether old records are deleted by retention; where neither policy is named, all are kept."""
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    """What Redis keeps of a topic with a cold tier, never -2: where nothing is named, it is retention_ms."""
    local_retention_bytes: int
    remote_storage: bool
    """Whether the topic has a cold tier."""
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_ms: int
    """Age of its oldest record from which the tail of a log may be compacted as well."""
    log_append_time: bool
    """Whether records carry the time of their append instead of their producer's."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int


def check_size(name: str, value: str) -> None:
    """Raise KafkaError INVALID_CONFIG where the value of a config, of whatever it may be, is longer than any may be."""
    size = len(value.encode(errors="surrogatepass"))
    if size > VALUE_BYTES_MAX:
        message = f"the value of {name} has {size} bytes; a config's may have {VALUE_BYTES_MAX}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


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
    if definition.type is ConfigType.BOOLEAN:
        text = text.lower()
    check_size(name, text)
    if text in definition.refused:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} {definition.refused[text]}")
    if definition.choices and definition.type is ConfigType.LIST:
        return _checked_list(definition, text)
    if definition.choices and text not in definition.choices:
        allowed = ", ".join(definition.choices)
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not one of: {allowed}")
    if definition.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        _check_number(definition, text)
    return str(int(text)) if definition.type in (ConfigType.INT, ConfigType.LONG) else text


def _checked_list(definition: TopicConfigDef, text: str) -> str:
    """Return a list as Kafka shows it, without blanks; an empty one names nothing, and nothing may be named twice."""
    parts = listed(text)
    for place, part in enumerate(parts):
        if part not in definition.choices:
            allowed = ", ".join(definition.choices)
            message = f"{definition.name}={text}: {part!r} is not one of: {allowed}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        if part in parts[:place]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{definition.name}={text} names {part} twice")
    return ",".join(parts)


def _check_number(definition: TopicConfigDef, text: str) -> None:
    name = definition.name
    form = _NUMBER if definition.type is ConfigType.DOUBLE else _INTEGER
    if not form.fullmatch(text):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not a number")
    number = float(text) if definition.type is ConfigType.DOUBLE else int(text)
    least = definition.least if definition.least is not None else -LONG_MAX - 1
    most = definition.most if definition.most is not None else LONG_MAX
    if not least <= number <= most:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={text} is not between {least} and {most}")


def readable(topic: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides of a topic without those that nobody can act on, with a log line for each of these.

    They were not written by this version of Korvet. A name that it does not know harms nothing, and stays.
    """
    found = {}
    for name, value in overrides.items():
        try:
            found[name] = check_override(name, value) if name in DEFINITIONS else value
        except KafkaError as error:
            _log.error("a topic's config is left out", topic=topic, reason=error)
    return found


def values(overrides: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return every topic config with its effective value: the override, else the broker's, else Kafka's."""
    return {
        name: overrides[name] if name in overrides else _inherited(definition, settings)
        for name, definition in DEFINITIONS.items()
    }


def _inherited(definition: TopicConfigDef, settings: Settings) -> str:
    if definition.default is not None:
        return definition.default
    row = _rows()[definition.setting]
    text = row.shown(row.of(settings))
    return ",".join(listed(text)) if row.is_list else text


def entries(overrides: Mapping[str, str], layers: Layers) -> list[ConfigEntry]:
    """Return every topic config by name, as clients are told of it."""
    return with_overrides(inherited(layers), overrides)


def inherited(layers: Layers) -> tuple[ConfigEntry, ...]:
    """Return every topic config by name, as it is on a topic without any of its own."""
    return tuple(_entry(definition, layers) for _, definition in sorted(DEFINITIONS.items()))


def with_overrides(bare: Sequence[ConfigEntry], overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return what is `inherited`, with those on top that are set; entries without one are the same objects."""
    source = ConfigSource.TOPIC
    return [
        msgspec.structs.replace(
            entry, synonyms=(Synonym(entry.name, overrides[entry.name], source), *entry.synonyms)
        )
        if entry.name in overrides
        else entry
        for entry in bare
    ]


def _entry(definition: TopicConfigDef, layers: Layers) -> ConfigEntry:
    name = definition.name
    if definition.default is None:
        row = _rows()[definition.setting]
        synonyms = chain(row, layers)
    else:
        synonyms = (Synonym(name, definition.default, ConfigSource.DEFAULT),)
    return ConfigEntry(
        name=name,
        synonyms=synonyms,
        type=definition.type,
        documentation=documentation(definition),
        read_only=name in FIXED_AT_CREATION,
    )


def documentation(definition: TopicConfigDef) -> str:
    """Return what a topic config is for: mostly what the setting is for that it lies over."""
    text = definition.documentation or _rows()[definition.setting].about.doc
    return f"{text} Without a meaning here." if definition.meaningless else text


@cache
def _rows() -> dict[str, ConfigKey]:
    return {row.name: row for row in rows()}


def check_together(overrides: Mapping[str, str], settings: Settings) -> None:
    """Raise KafkaError INVALID_CONFIG where a topic's configs, each of which is in order, contradict each other."""
    found = values(overrides, settings)
    _check_at_most(found, "min.compaction.lag.ms", "max.compaction.lag.ms")
    if found["remote.storage.enable"] != "true":
        return
    if not settings.lake_path:
        message = "remote.storage.enable=true: this broker has no archive (lake.path)"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if "compact" in listed(found["cleanup.policy"]):
        message = "remote.storage.enable=true excludes cleanup.policy=compact"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    for unit in ("ms", "bytes"):
        local, whole = f"local.retention.{unit}", f"retention.{unit}"
        # -1 is without a limit; -2 says that the local one is as the whole one.
        if found[whole] != "-1" and found[local] == "-1":
            message = f"{local}=-1 is more than {whole}={found[whole]}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        if found[whole] != "-1":
            _check_at_most(found, local, whole)


def _check_at_most(values: Mapping[str, str], smaller: str, larger: str) -> None:
    if int(values[smaller]) > int(values[larger]):
        message = f"{smaller}={values[smaller]} is more than {larger}={values[larger]}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def effective(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    """Return what the broker acts on for a topic with these overrides."""
    found = values(overrides, settings)
    compression, policies = found["compression.type"], listed(found["cleanup.policy"])
    retention_ms, retention_bytes = int(found["retention.ms"]), int(found["retention.bytes"])
    local_ms, local_bytes = int(found["local.retention.ms"]), int(found["local.retention.bytes"])
    return TopicConfig(
        # The stored records do not tell which codec each producer used; both of these mean uncompressed here.
        codec=Codec.none if compression in ("producer", "uncompressed") else Codec[compression],
        max_message_bytes=int(found["max.message.bytes"]),
        sequence_bits=int(found["offset.sequence.bits"]),
        format="batch" if found["storage.format"] == "batch" else "record",
        recompress=compression not in ("none", "producer"),
        at_rest=AtRest(_AT_REST_CODECS[found["storage.compression"]], settings.storage_compression_min_bytes),
        compact="compact" in policies,
        delete="delete" in policies,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        local_retention_ms=retention_ms if local_ms == AS_RETENTION else local_ms,
        local_retention_bytes=retention_bytes if local_bytes == AS_RETENTION else local_bytes,
        remote_storage=found["remote.storage.enable"] == "true",
        delete_retention_ms=int(found["delete.retention.ms"]),
        min_cleanable_dirty_ratio=float(found["min.cleanable.dirty.ratio"]),
        min_compaction_lag_ms=int(found["min.compaction.lag.ms"]),
        max_compaction_lag_ms=int(found["max.compaction.lag.ms"]),
        segment_ms=int(found["segment.ms"]),
        log_append_time=found["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=int(found["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(found["message.timestamp.after.max.ms"]),
    )
