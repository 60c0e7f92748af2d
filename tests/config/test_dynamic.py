"""Dynamic settings over the settings of the start: their names, their values, and the ignored ones."""

from __future__ import annotations

import pytest

from korvet.config.broker_configs import DYNAMIC_CONFIGS, ONLY_IF_SET, WITHOUT_EFFECT
from korvet.config.dynamic import THIS_BROKER, merge, merge_valid
from korvet.config.settings import SETTINGS, Settings
from korvet.errors import ConfigError
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import ConfigChange, altered_broker

KAFKAS_DYNAMIC = """
    compression.type log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
    log.cleaner.delete.retention.ms log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
    log.cleaner.min.compaction.lag.ms log.cleanup.policy log.local.retention.bytes
    log.local.retention.ms log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.message.timestamp.type log.retention.bytes log.retention.ms log.roll.ms
    max.connection.creation.rate max.connections max.connections.per.ip max.connections.per.ip.overrides
    message.max.bytes min.insync.replicas producer.id.expiration.ms remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms
"""
"""Update mode "cluster-wide" in Kafka's documentation, "Broker Configs"."""

OWN_DYNAMIC = """
    log.level log.levels memory.refuse.percent memory.throttle.percent message.max.records
    offset.encoding offset.sequence.bits redis.placement storage.compression storage.compression.min.bytes
    storage.format storage.format.topics throttle.max.ms
"""

START = Settings(log_retention_ms=5, num_partitions=3)


def test_kafkas_dynamic_settings_are_dynamic_and_its_read_only_ones_are_not() -> None:
    assert DYNAMIC_CONFIGS.keys() == {*KAFKAS_DYNAMIC.split(), *OWN_DYNAMIC.split(), *WITHOUT_EFFECT}


def test_every_dynamic_setting_takes_a_new_value_with_sighup_too() -> None:
    dynamic = [item for item in SETTINGS.values() if item.dynamic]
    assert all(setting.reload for setting in dynamic)
    assert not any(setting.secret for setting in dynamic)


def test_a_broker_counts_before_the_cluster_and_that_before_the_start() -> None:
    layers = merge(START, {"log.retention.ms": "6", "message.max.bytes": "7"}, {"log.retention.ms": "8"})
    assert layers.settings == Settings(log_retention_ms=8, message_max_bytes=7, num_partitions=3)
    assert layers.static == START
    assert merge(START, {"log.retention.ms": "6"}, {}).settings.log_retention_ms == 6
    assert merge(START, {}, {}).settings == START


def test_a_name_that_no_setting_has_here_changes_nothing() -> None:
    rates = dict.fromkeys(ONLY_IF_SET, "1000")
    assert merge(START, rates, rates).settings == START


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [("log.retention.ms", " 5 ", "5"), ("leader.replication.throttled.rate", "0", "0")],
)
def test_a_value_is_kept_as_it_is_shown(name: str, text: str, kept: str) -> None:
    change = ConfigChange(name, ConfigOperation.SET, text)
    assert altered_broker({}, [change], merge(START, {}, {}), THIS_BROKER) == {name: kept}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("log.roll.ms", "0", "a whole number from 1"),
        ("storage.format.topics", "x", "PATTERN=record"),
        ("storage.format.topics", "a=batch\n", "control characters"),
        ("num.partitions", "4", "can be altered while brokers run"),
        ("no.such", "4", "can be altered while brokers run"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_is_allowed(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        merge(START, {}, {name: text})
    assert said in str(refused.value)


def test_what_contradicts_itself_over_all_layers_is_named_with_the_layers() -> None:
    with pytest.raises(ConfigError) as refused:
        merge(START, {"memory.throttle.percent": "50"}, {"memory.refuse.percent": "40"})
    assert str(refused.value) == (
        "memory.throttle.percent = 50 is more than memory.refuse.percent = 40 (cluster-wide, broker)"
    )


def test_what_cannot_be_laid_is_left_out_and_the_rest_counts() -> None:
    cluster = {"log.retention.ms": "soon", "message.max.bytes": "7", "of.another.version": "1"}
    layers, problems = merge_valid(START, cluster, {"log.roll.ms": "9"})
    assert layers.cluster == {"message.max.bytes": "7"}
    assert layers.settings == Settings(
        log_retention_ms=5, num_partitions=3, message_max_bytes=7, log_roll_ms=9
    )
    assert len(problems) == 2
    assert "'soon' for configuration log.retention.ms (cluster-wide)" in problems[0]
    assert "of.another.version" in problems[1]


def test_settings_that_are_in_order_only_together_are_laid_together() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "100", "log.cleaner.max.compaction.lag.ms": "200"}
    start = Settings(log_cleaner_max_compaction_lag_ms=50)
    layers, problems = merge_valid(start, {}, lags)
    assert (layers.broker, problems) == (lags, [])


def test_of_settings_that_contradict_each_other_one_is_left_out() -> None:
    layers, problems = merge_valid(
        START, {"memory.refuse.percent": "40", "memory.throttle.percent": "50"}, {}
    )
    assert layers.cluster == {"memory.throttle.percent": "50"}
    assert len(problems) == 1
    layers, problems = merge_valid(START, {"memory.throttle.percent": "40"}, {"memory.refuse.percent": "30"})
    assert layers.settings.memory_throttle_percent == 40
    assert layers.broker == {}
    assert len(problems) == 1
