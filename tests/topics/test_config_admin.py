"""What becomes of configs that are changed, beyond what the tests of the APIs show by bytes."""

from __future__ import annotations

import pytest

from korvet.config.dynamic import CLUSTER_WIDE, THIS_BROKER, merge
from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import ConfigChange, altered_broker, altered_topic

START = merge(Settings(log_cleanup_policy="compact"), {}, {})


def append(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ConfigOperation.APPEND, value)


def subtract(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ConfigOperation.SUBTRACT, value)


def test_what_a_topic_inherits_is_appended_to() -> None:
    changes = [append("cleanup.policy", "delete")]
    assert altered_topic({}, changes, START) == {"cleanup.policy": "compact,delete"}
    assert altered_topic({"cleanup.policy": "delete"}, changes, START) == {"cleanup.policy": "delete"}


def test_a_list_may_become_empty() -> None:
    changes = [subtract("cleanup.policy", "compact , delete")]
    assert altered_topic({}, changes, START) == {"cleanup.policy": ""}
    assert altered_topic({"cleanup.policy": ""}, [append("cleanup.policy", "delete")], START) == {
        "cleanup.policy": "delete"
    }


def test_what_another_version_has_set_may_only_be_deleted() -> None:
    held = {"of.another.version": "1", "segment.ms": "5"}
    assert altered_topic(held, [ConfigChange("of.another.version", ConfigOperation.DELETE, None)], START) == {
        "segment.ms": "5"
    }
    assert altered_broker(
        held, [ConfigChange("of.another.version", ConfigOperation.DELETE, None)], START, THIS_BROKER
    ) == {"segment.ms": "5"}
    change = ConfigChange("of.another.version", ConfigOperation.SET, "2")
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*of\.another\.version"):
        altered_topic(held, [change], START)
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*of\.another\.version"):
        altered_broker({}, [change], START, THIS_BROKER)


@pytest.mark.parametrize("name", ["min.compaction.lag.ms", "remote.storage.enable", "cleanup.policy"])
def test_a_value_that_cannot_be_read_is_an_error_until_it_is_deleted(name: str) -> None:
    held = {name: "of another version"}
    with pytest.raises(KafkaError, match=f"^INVALID_CONFIG .*{name}"):
        altered_topic(held, [append("cleanup.policy", "delete")], START)
    assert altered_topic(held, [ConfigChange(name, ConfigOperation.DELETE, None)], START) == {}


def test_what_another_version_has_set_stays_where_something_else_is_changed() -> None:
    held = {"of.another.version": "1"}
    change = ConfigChange("log.roll.ms", ConfigOperation.SET, "5")
    assert altered_broker(held, [change], START, THIS_BROKER) == {**held, "log.roll.ms": "5"}
    assert altered_broker(held, [change], START, CLUSTER_WIDE) == {**held, "log.roll.ms": "5"}
    change = ConfigChange("segment.ms", ConfigOperation.SET, "5")
    assert altered_topic(held, [change], START) == {**held, "segment.ms": "5"}


def test_a_brokers_list_is_appended_to_what_lies_below_it() -> None:
    layers = merge(Settings(), {"log.cleanup.policy": "compact"}, {"log.cleanup.policy": ""})
    change = append("log.cleanup.policy", "delete")
    assert altered_broker({}, [change], layers, THIS_BROKER) == {"log.cleanup.policy": "compact,delete"}
    assert altered_broker({}, [change], layers, CLUSTER_WIDE) == {"log.cleanup.policy": "delete"}


def test_a_full_replacement_keeps_what_is_fixed() -> None:
    held = {"storage.format": "batch", "offset.sequence.bits": "10", "segment.ms": "5"}
    change = ConfigChange("retention.ms", ConfigOperation.SET, "7")
    assert altered_topic(held, [change], START, reset=True) == {
        "storage.format": "batch",
        "offset.sequence.bits": "10",
        "retention.ms": "7",
    }


def test_what_was_altered_at_the_broker_contradicts_a_topic_too() -> None:
    layers = merge(Settings(), {"log.cleaner.max.compaction.lag.ms": "50"}, {})
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*min\.compaction\.lag\.ms=60 is more than"):
        altered_topic({}, [ConfigChange("min.compaction.lag.ms", ConfigOperation.SET, "60")], layers)


@pytest.mark.parametrize(
    "change",
    [
        ConfigChange("remote.storage.enable", ConfigOperation.DELETE, None),
        ConfigChange("remote.storage.enable", ConfigOperation.SET, "false"),
    ],
)
def test_an_archived_topic_stays_one(change: ConfigChange) -> None:
    layers = merge(Settings(lake_path="lake"), {}, {})
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*cannot be switched off"):
        altered_topic({"remote.storage.enable": "true"}, [change], layers)
    assert altered_topic(
        {}, [ConfigChange("remote.storage.enable", ConfigOperation.SET, "true")], layers
    ) == {"remote.storage.enable": "true"}


def test_a_list_is_not_appended_to_without_end() -> None:
    rules = ",".join(f"topic-{number}=batch" for number in range(2000))
    held = {"storage.format.topics": rules}
    more = append("storage.format.topics", ",".join(f"other-{number}=batch" for number in range(500)))
    with pytest.raises(KafkaError, match=r"^INVALID_REQUEST .*at most 32767 bytes"):
        altered_broker(held, [more], START, CLUSTER_WIDE)
    name = "leader.replication.throttled.replicas"
    held = altered_topic({}, [append(name, "0:1, " + "1:" + "1" * 32_000)], START)
    assert held == {name: "0:1,1:" + "1" * 32_000}
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*at most 32767 bytes"):
        altered_topic(held, [append(name, "1:" + "1" * 1000)], START)
