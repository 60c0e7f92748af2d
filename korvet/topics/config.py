"""The configuration of a topic: what the broker makes of the configs that are set on it and of its own settings.

The topic's own config wins over the inherited setting of the broker, and the setting over Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from korvet import logs
from korvet.config.definition import Value
from korvet.config.settings import Settings
from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.config.values import listed
from korvet.errors import ConfigError, ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec
from korvet.topics.entry_ids import DENSE
from korvet.topics.types import AtRest

_log = logs.Log(__name__)

_AT_REST_CODECS: dict[Value, Literal["none", "lz4", "zstd"]] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}

AS_RETENTION = -2
"""The value of local.retention.* with which the remote tier changes nothing about how long Redis keeps records."""

_RETENTIONS = ("retention_ms", "retention_bytes")


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker acts on, typed. Sizes in bytes, times in milliseconds; a retention below 0 is without a limit."""

    codec: Codec
    max_message_bytes: int
    max_message_records: int
    """Of a batch in format `record`."""
    id_bits: int
    """How ids of entries name offsets (entry_ids.py)."""
    format: Literal["record", "batch"]
    recompress: bool
    """Whether a batch in another codec is recompressed when it is appended in format `batch`."""
    at_rest: AtRest
    compact: bool
    """Whether only the latest record of each key is kept; records without a key are refused then."""
    delete: bool
    """Whether retention deletes old records; with neither policy all are kept."""
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    """What Redis keeps of a topic with a remote tier, never -2: by default retention_ms."""
    local_retention_bytes: int
    remote_storage: bool
    """Whether the topic has a remote tier."""
    remote_copy: bool
    """Whether records are copied to the remote tier."""
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
    min_insync_replicas: int
    """Servers of Redis that must be in sync for acks=all, the master included."""


def normalize(name: str, value: str | None) -> str:
    """Return `value` as it is kept for the topic config `name`.

    Raises KafkaError INVALID_CONFIG, saying what is wrong: an unknown name, no value, or one out of range.
    """
    if name not in TOPIC_CONFIGS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic config: {name}")
    try:
        return TOPIC_CONFIGS[name].format(TOPIC_CONFIGS[name].parse(value))
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def readable(topic: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides of a topic without those that cannot be read, with a log line for each of these.

    They were not written by this version of Korvet. A name that it does not know harms nothing, and stays.
    """
    # A topic of a version without this config has offsets that are times.
    result = {"offset.encoding": "time"}
    for name, value in overrides.items():
        try:
            result[name] = normalize(name, value) if name in TOPIC_CONFIGS else value
        except KafkaError as error:
            _log.error("ignoring a topic's config", topic=topic, reason=error)
    return result


def value(name: str, overrides: Mapping[str, str], settings: Settings) -> Value:
    """Return the effective value of a topic config: the override, else the broker's, else Kafka's.

    Raises KafkaError INVALID_CONFIG for an override of another version of Korvet that cannot be read.
    """
    definition = TOPIC_CONFIGS[name]
    if name not in overrides:
        return definition.value(settings)
    try:
        return definition.parse(overrides[name])
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_together(overrides: Mapping[str, str], settings: Settings) -> None:
    """Raise KafkaError INVALID_CONFIG if a topic's configs, each in its range, contradict each other."""
    _check_at_most("min.compaction.lag.ms", "max.compaction.lag.ms", overrides, settings)
    if overrides.get("storage.format") == "batch" and overrides.get("offset.encoding") == "time":
        message = "offset.encoding=time needs storage.format=record: in format batch offsets are always dense"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if not value("remote.storage.enable", overrides, settings):
        return
    if not settings.lake_path:
        message = "remote.storage.enable=true: this broker has no archive (lake.path)"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if "compact" in _policies(overrides, settings):
        message = "remote.storage.enable=true excludes cleanup.policy=compact"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    for unit in ("ms", "bytes"):
        local, whole = f"local.retention.{unit}", f"retention.{unit}"
        limit, kept = int(value(whole, overrides, settings)), value(local, overrides, settings)
        if value("remote.log.copy.disable", overrides, settings) and kept not in (limit, AS_RETENTION):
            message = f"remote.log.copy.disable=true: {local}={kept} must be -2 or that of {whole}, {limit}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        # A negative limit is none; -2 stands for the limit of the whole.
        if limit >= 0 and kept == -1:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{local}=-1 is more than {whole}={limit}")
        if limit >= 0:
            _check_at_most(local, whole, overrides, settings)


def _check_at_most(smaller: str, larger: str, overrides: Mapping[str, str], settings: Settings) -> None:
    low, high = (int(value(name, overrides, settings)) for name in (smaller, larger))
    if low > high:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{smaller}={low} is more than {larger}={high}")


def _policies(overrides: Mapping[str, str], settings: Settings) -> list[str]:
    return listed(str(value("cleanup.policy", overrides, settings)))


_SAME = {
    field: name
    for field in TopicConfig.__struct_fields__
    if (name := field.replace("_", ".")) in TOPIC_CONFIGS
}
"""Fields that have the value of a config as it is, and the names of these configs."""


def effective(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    def result(name: str) -> Value:
        return value(name, overrides, settings)

    same: dict[str, Any] = {field: result(name) for field, name in _SAME.items()}
    # -2 stands for the limit of the whole.
    same |= {f"local_{item}": same[item] for item in _RETENTIONS if same[f"local_{item}"] == AS_RETENTION}
    compression, policies = str(result("compression.type")), _policies(overrides, settings)
    return TopicConfig(
        **same,
        # The stored records do not show which codec each producer used: `producer` means uncompressed here too.
        codec=Codec.none if compression in ("producer", "uncompressed") else Codec[compression],
        id_bits=DENSE if result("offset.encoding") == "dense" else int(result("offset.sequence.bits")),
        format="batch" if result("storage.format") == "batch" else "record",
        recompress=compression != "producer",
        at_rest=AtRest(
            _AT_REST_CODECS[result("storage.compression")], settings.storage_compression_min_bytes
        ),
        compact="compact" in policies,
        delete="delete" in policies,
        remote_storage=bool(result("remote.storage.enable")),
        remote_copy=bool(result("remote.storage.enable")) and not result("remote.log.copy.disable"),
        log_append_time=result("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(result("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(result("message.timestamp.after.max.ms")),
    )
