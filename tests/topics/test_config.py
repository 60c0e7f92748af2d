"""The table of topic configs against Kafka's names, and values against their types."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from korvet.config.definition import INT64_MAX
from korvet.config.described import ConfigEntry, inherited_entries, with_overrides
from korvet.config.dynamic import Layers
from korvet.config.settings import Settings
from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec
from korvet.protocol.types import ConfigSource, ConfigType
from korvet.topics import config as topic_config

KAFKAS = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
    index.interval.bytes leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
    remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
    segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
OWN = """
    lake.partitioning max.message.records offset.encoding offset.sequence.bits redis.placement storage.compression
    storage.format
"""


def entries(overrides: dict[str, str], settings: Settings) -> dict[str, ConfigEntry]:
    """Return the configs of a topic at a broker on which nothing was altered since its start."""
    layers = Layers(settings=settings, static=settings)
    return {
        with_override.definition.name: with_override
        for with_override in with_overrides(inherited_entries(layers), overrides, ())
    }


def refusal(name: str, value: str | None) -> str:
    with pytest.raises(KafkaError) as refused:
        topic_config.normalize(name, value)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    return refused.value.message


def test_every_topic_config_of_kafka_is_known_and_ours_are_named_apart() -> None:
    assert set(TOPIC_CONFIGS) == {*KAFKAS.split(), *OWN.split()}


@pytest.mark.parametrize("name", sorted(TOPIC_CONFIGS))
def test_every_default_is_a_value_that_may_be_given(name: str) -> None:
    default = entries({}, Settings())[name]
    assert default.source == ConfigSource.DEFAULT
    assert topic_config.normalize(name, default.value) == default.value


@pytest.mark.parametrize(
    "name", [item.name for item in TOPIC_CONFIGS.values() if item.type in (ConfigType.INT, ConfigType.LONG)]
)
def test_numbers_are_within_their_bounds_and_written_as_kafka_reads_them(name: str) -> None:
    definition = TOPIC_CONFIGS[name]
    largest = 2**31 - 1 if definition.type is ConfigType.INT else 2**63 - 1
    for text in (str(largest + 1), "", "one", "1.5", "1_0", "\u0661", "0x10", "1e3", "--1"):
        assert name in refusal(name, text)
    assert name in refusal(name, str(definition.least - 1))


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", " 5 ", "5"),
        ("compression.type", "lz4 ", "lz4"),
        ("retention.ms", "+007", "7"),
        ("max.message.bytes", "-0", "0"),
        ("preallocate", "True", "true"),
        ("unclean.leader.election.enable", " FALSE ", "false"),
        ("min.cleanable.dirty.ratio", ".5", "0.5"),
        ("min.cleanable.dirty.ratio", "1.", "1.0"),
        ("min.cleanable.dirty.ratio", "NaN", "NaN"),
        ("retention.bytes", "-2", "-2"),
        ("cleanup.policy", "delete,compact, delete", "delete,compact"),
        ("leader.replication.throttled.replicas", " 0:1 , 1:2", "0:1,1:2"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("remote.log.delete.on.disable", "true", "true"),
    ],
)
def test_values_are_read_as_kafka_reads_them_and_kept_as_it_shows_them(
    name: str, value: str, kept: str
) -> None:
    assert topic_config.normalize(name, value) == kept
    topic_config.effective({name: kept}, Settings())  # which does not raise


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("preallocate", "yes", "true or false"),
        ("compression.type", "LZ4", "one of producer, uncompressed"),
        ("compression.type", "none", "one of producer, uncompressed"),
        ("compression.gzip.level", "0", "one of -1, 1, 2"),
        ("compression.gzip.level", "10", "one of -1, 1, 2"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.zstd.level", "23", "from -131072 to 22"),
        ("segment.bytes", "1048575", "from 1048576"),
        ("leader.replication.throttled.replicas", "x", "PARTITION:BROKER"),
        ("follower.replication.throttled.replicas", "0:1,*", "PARTITION:BROKER"),
        ("no.such.config", "1", "Unknown"),
        ("retention.ms", None, "Null"),
    ],
)
def test_what_kafka_refuses_is_refused(name: str, value: str | None, says: str) -> None:
    assert says in refusal(name, value)


@pytest.mark.parametrize(
    ("value", "kept"),
    [("compact,delete", "compact,delete"), (" delete ,\tcompact ", "delete,compact"), ("", "")],
)
def test_the_cleanup_policy_is_a_list_of_two_policies_and_kept_without_blanks(value: str, kept: str) -> None:
    assert topic_config.normalize("cleanup.policy", value) == kept
    for config in (
        topic_config.effective({"cleanup.policy": kept}, Settings()),
        topic_config.effective({}, Settings(log_cleanup_policy=value)),
    ):
        assert (config.compact, config.delete) == ("compact" in kept, "delete" in kept)


def test_the_brokers_defaults_are_kafkas() -> None:
    config = topic_config.effective({}, Settings())
    day_ms = 86_400_000
    assert (config.compact, config.delete, config.remote_storage) == (False, True, False)
    assert (config.retention_ms, config.local_retention_ms, config.segment_ms) == (7 * day_ms,) * 3
    assert (config.retention_bytes, config.local_retention_bytes) == (-1, -1)
    assert (config.delete_retention_ms, config.min_cleanable_dirty_ratio) == (day_ms, 0.5)
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (0, INT64_MAX)
    assert config.log_append_time is False
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (INT64_MAX, 3_600_000)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "acted_upon"),
    [
        ("delete.retention.ms", 1, "delete_retention_ms", 1),
        ("local.retention.bytes", 2, "local_retention_bytes", 2),
        ("local.retention.ms", 3, "local_retention_ms", 3),
        ("max.compaction.lag.ms", 4, "max_compaction_lag_ms", 4),
        ("message.timestamp.after.max.ms", 5, "timestamp_after_max_ms", 5),
        ("message.timestamp.before.max.ms", 6, "timestamp_before_max_ms", 6),
        ("message.timestamp.type", "LogAppendTime", "log_append_time", True),
        ("min.cleanable.dirty.ratio", 0.75, "min_cleanable_dirty_ratio", 0.75),
        ("min.compaction.lag.ms", 1, "min_compaction_lag_ms", 1),
        ("segment.ms", 8, "segment_ms", 8),
    ],
)
def test_a_topics_config_and_the_setting_that_it_inherits_are_acted_upon(
    name: str, value: Any, attribute: str, acted_upon: object
) -> None:
    setting: dict[str, Any] = {TOPIC_CONFIGS[name].attribute: value}
    for config in (
        topic_config.effective({name: str(value)}, Settings()),
        topic_config.effective({}, Settings(**setting)),
    ):
        assert getattr(config, attribute) == acted_upon


REMOTE, UNCOPIED = {"remote.storage.enable": "true"}, {"remote.log.copy.disable": "true"}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "min.compaction.lag.ms=2 is more than",
        ),
        ({"max.compaction.lag.ms": "5"}, "min.compaction.lag.ms=9 is more than max.compaction.lag.ms=5"),
        (REMOTE | {"cleanup.policy": "delete,compact"}, "excludes cleanup.policy=compact"),
        (REMOTE | {"retention.ms": "5", "local.retention.ms": "6"}, "local.retention.ms=6 is more than"),
        (REMOTE | {"retention.ms": "5", "local.retention.ms": "-1"}, "local.retention.ms=-1 is more than"),
        (REMOTE | {"retention.bytes": "5", "local.retention.bytes": "6"}, "is more than retention.bytes=5"),
        (REMOTE | UNCOPIED | {"local.retention.ms": "5"}, "local.retention.ms=5 must be -2 or that of"),
        (REMOTE | {"retention.bytes": "5", "local.retention.bytes": "-1"}, "is more than retention.bytes=5"),
    ],
)
def test_configs_that_contradict_each_other_are_refused(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaError, match=f"^INVALID_CONFIG .*{re.escape(says)}"):
        topic_config.check_together(
            overrides, Settings(log_cleaner_min_compaction_lag_ms=9, lake_path="lake")
        )


def test_no_topic_is_archived_where_there_is_no_lake() -> None:
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*this broker has no archive \(lake\.path\)"):
        topic_config.check_together(REMOTE, Settings())


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"retention.ms": "5", "local.retention.ms": "6"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        REMOTE,
        REMOTE | {"retention.ms": "5", "local.retention.ms": "5"},
        REMOTE | {"retention.ms": "-1", "local.retention.ms": "6"},
        REMOTE | UNCOPIED | {"retention.ms": "5", "local.retention.ms": "5"},
        UNCOPIED | {"local.retention.ms": "5"},
        REMOTE | {"retention.bytes": "-1", "local.retention.bytes": "-1"},
    ],
)
def test_configs_that_go_together_are_taken(overrides: dict[str, str]) -> None:
    topic_config.check_together(overrides, Settings(lake_path="lake"))


def test_an_override_lies_over_the_brokers_setting_and_that_over_kafkas_default() -> None:
    settings = Settings(message_max_bytes=5000, log_retention_ms=7, compression_type="zstd")
    of_broker = topic_config.effective({}, settings)
    assert topic_config.value("retention.ms", {}, Settings(log_retention_ms=-2)) == -1
    assert (of_broker.max_message_bytes, of_broker.retention_ms, of_broker.codec) == (5000, 7, Codec.zstd)
    overrides = {"max.message.bytes": "9", "compression.type": "lz4", "retention.bytes": "-1"}
    of_topic = topic_config.effective(overrides, settings)
    assert (of_topic.max_message_bytes, of_topic.codec, of_topic.retention_ms) == (9, Codec.lz4, 7)


@pytest.mark.parametrize("value", ["uncompressed", "producer"])
def test_consumers_get_plain_batches_where_no_codec_is_named(value: str) -> None:
    assert topic_config.effective({"compression.type": value}, Settings()).codec == Codec.none


def test_overrides_that_cannot_be_read_are_left_out_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    overrides = {"retention.ms": "soon", "segment.ms": "5", "of.another.version": "1"}
    with caplog.at_level(logging.ERROR):
        left = topic_config.readable("orders", overrides)
    # Without an encoding the row is of a version that knew one alone.
    assert left == {"segment.ms": "5", "of.another.version": "1", "offset.encoding": "time"}
    assert len(caplog.records) == 1
    config = topic_config.effective(topic_config.readable("orders", overrides), Settings())
    assert (config.retention_ms, config.segment_ms) == (Settings().log_retention_ms, 5)
