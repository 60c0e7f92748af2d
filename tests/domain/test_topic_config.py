"""The table of topic configs against Kafka's names, and values against their types."""

from __future__ import annotations

import pytest

from korvet.config import Settings
from korvet.domain import topic_config
from korvet.domain.topic_config import DEFINITIONS, ConfigSource, ConfigType
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec

KAFKAS = {
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}
OWN = {"offset.sequence.bits", "storage.compression", "storage.format"}


def refusal(name: str, value: str | None) -> str:
    with pytest.raises(KafkaError) as refused:
        topic_config.check_override(name, value)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    return refused.value.message


def test_every_topic_config_of_kafka_is_known_and_ours_are_named_apart() -> None:
    assert set(DEFINITIONS) == KAFKAS | OWN


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_every_default_is_a_value_that_may_be_given(name: str) -> None:
    [entry] = [each for each in topic_config.entries({}, Settings()) if each.name == name]
    assert entry.source == ConfigSource.DEFAULT_CONFIG
    assert topic_config.check_override(name, entry.value) == entry.value


@pytest.mark.parametrize(
    "name", [each.name for each in DEFINITIONS.values() if each.type in (ConfigType.INT, ConfigType.LONG)]
)
def test_numbers_are_within_their_bounds_and_written_as_kafka_reads_them(name: str) -> None:
    definition = DEFINITIONS[name]
    largest = 2**31 - 1 if definition.type is ConfigType.INT else 2**63 - 1
    for text in (str(largest + 1), "", "one", "1.5", "1_0", "\u0661", "0x10", "1e3", "--1"):
        assert name in refusal(name, text)
    if definition.least is not None:
        assert name in refusal(name, str(int(definition.least) - 1))


def test_values_are_trimmed_as_kafka_does() -> None:
    assert topic_config.check_override("retention.ms", " 5 ") == "5"
    assert topic_config.check_override("compression.type", "lz4 ") == "lz4"


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "1.1", "half", ""])
def test_a_ratio_is_a_number_between_0_and_1(value: str) -> None:
    assert refusal("min.cleanable.dirty.ratio", value)
    assert topic_config.check_override("min.cleanable.dirty.ratio", "0.25") == "0.25"


def test_what_is_not_built_says_so() -> None:
    assert "not supported yet" in refusal("cleanup.policy", "compact")
    assert "not supported yet" in refusal("remote.storage.enable", "true")
    assert "not supported yet" in refusal("message.timestamp.type", "LogAppendTime")
    assert "Unknown" in refusal("no.such.config", "1")
    assert "Null" in refusal("retention.ms", None)


def test_an_override_lies_over_the_brokers_setting_and_that_over_kafkas_default() -> None:
    settings = Settings(message_max_bytes=5000, log_retention_ms=7, compression_type="zstd")
    of_broker = topic_config.effective({}, settings)
    assert (of_broker.max_message_bytes, of_broker.retention_ms, of_broker.codec) == (5000, 7, Codec.zstd)
    overrides = {"max.message.bytes": "9", "compression.type": "lz4", "retention.bytes": "-1"}
    of_topic = topic_config.effective(overrides, settings)
    assert (of_topic.max_message_bytes, of_topic.codec, of_topic.retention_ms) == (9, Codec.lz4, 7)
    sources = {each.name: each.source for each in topic_config.entries(overrides, settings)}
    dynamic = {name for name, source in sources.items() if source == ConfigSource.DYNAMIC_TOPIC_CONFIG}
    assert dynamic == set(overrides)


@pytest.mark.parametrize("value", ["none", "uncompressed", "producer"])
def test_consumers_get_plain_batches_where_no_codec_is_named(value: str) -> None:
    assert topic_config.effective({"compression.type": value}, Settings()).codec == Codec.none
