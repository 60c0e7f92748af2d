"""Changed configs, beyond the bytes that the tests of the APIs show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from korvet.config.dynamic import CLUSTER_WIDE, THIS_BROKER, Layers, merge
from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import ConfigChange, altered_broker, altered_topic
from korvet.topics.types import TopicRow

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
START = merge(Settings(log_cleanup_policy="compact"), {}, {})


def append(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, APPEND, value)


def subtract(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, SUBTRACT, value)


def altered(
    configs: Mapping[str, str], changes: list[ConfigChange], layers: Layers, *, reset: bool = False
) -> dict[str, str]:
    row = TopicRow(id="id", partitions=1, configs=dict(configs))
    return altered_topic(row, changes, layers, reset=reset).configs


def test_what_a_topic_inherits_is_appended_to() -> None:
    changes = [append("cleanup.policy", "delete")]
    assert altered({}, changes, START) == {"cleanup.policy": "compact,delete"}
    assert altered({"cleanup.policy": "delete"}, changes, START) == {"cleanup.policy": "delete"}


def test_a_list_may_become_empty() -> None:
    changes = [subtract("cleanup.policy", "compact , delete")]
    assert altered({}, changes, START) == {"cleanup.policy": ""}
    deleted = [append("cleanup.policy", "delete")]
    assert altered({"cleanup.policy": ""}, deleted, START) == {"cleanup.policy": "delete"}


def test_what_another_version_has_set_may_only_be_deleted() -> None:
    held, name = {"of.another.version": "1", "segment.ms": "5"}, "of.another.version"
    delete, change = ConfigChange(name, DELETE, None), ConfigChange(name, SET, "2")
    assert altered(held, [delete], START) == {"segment.ms": "5"}
    assert altered_broker(held, [delete], START, THIS_BROKER) == {"segment.ms": "5"}
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*of\.another\.version"):
        altered(held, [change], START)
    with pytest.raises(KafkaError, match=r"^INVALID_REQUEST .*of\.another\.version"):
        altered_broker({}, [change], START, THIS_BROKER)


@pytest.mark.parametrize("name", ["min.compaction.lag.ms", "remote.storage.enable", "cleanup.policy"])
def test_a_value_that_cannot_be_read_is_an_error_until_it_is_deleted(name: str) -> None:
    held = {name: "of another version"}
    with pytest.raises(KafkaError, match=f"^INVALID_CONFIG .*{name}"):
        altered(held, [append("cleanup.policy", "delete")], START)
    assert altered(held, [ConfigChange(name, DELETE, None)], START) == {}


def test_what_another_version_has_set_stays_where_something_else_is_changed() -> None:
    held = {"of.another.version": "1"}
    change = ConfigChange("log.roll.ms", SET, "5")
    assert altered_broker(held, [change], START, THIS_BROKER) == {**held, "log.roll.ms": "5"}
    assert altered_broker(held, [change], START, CLUSTER_WIDE) == {**held, "log.roll.ms": "5"}
    change = ConfigChange("segment.ms", SET, "5")
    assert altered(held, [change], START) == {**held, "segment.ms": "5"}


def test_a_brokers_list_is_appended_to_what_lies_below_it() -> None:
    layers = merge(Settings(), {"log.cleanup.policy": "compact"}, {"log.cleanup.policy": ""})
    change = append("log.cleanup.policy", "delete")
    assert altered_broker({}, [change], layers, THIS_BROKER) == {"log.cleanup.policy": "compact,delete"}
    assert altered_broker({}, [change], layers, CLUSTER_WIDE) == {"log.cleanup.policy": "delete"}


def test_a_full_replacement_keeps_what_is_fixed() -> None:
    held = {"storage.format": "batch", "offset.sequence.bits": "10", "segment.ms": "5"}
    change = ConfigChange("retention.ms", SET, "7")
    assert altered(held, [change], START, reset=True) == {
        "storage.format": "batch",
        "offset.sequence.bits": "10",
        "retention.ms": "7",
    }


def test_what_was_altered_at_the_broker_contradicts_a_topic_too() -> None:
    layers = merge(Settings(), {"log.cleaner.max.compaction.lag.ms": "50"}, {})
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*min\.compaction\.lag\.ms=60 is more than"):
        altered({}, [ConfigChange("min.compaction.lag.ms", SET, "60")], layers)


def test_an_archived_topic_stays_one() -> None:
    layers, archived = merge(Settings(lake_path="lake"), {}, {}), {"remote.storage.enable": "true"}
    for operation in (DELETE, SET):
        with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*cannot be switched off"):
            altered(archived, [ConfigChange("remote.storage.enable", operation, "false")], layers)
    assert altered({}, [ConfigChange("remote.storage.enable", SET, "true")], layers) == archived


def test_a_list_is_not_appended_to_without_end() -> None:
    rules = ",".join(f"topic-{number}=batch" for number in range(2000))
    held = {"storage.format.topics": rules}
    more = append("storage.format.topics", ",".join(f"other-{number}=batch" for number in range(500)))
    with pytest.raises(KafkaError, match=r"^INVALID_REQUEST .*at most 32767 bytes"):
        altered_broker(held, [more], START, CLUSTER_WIDE)
    name = "leader.replication.throttled.replicas"
    held = altered({}, [append(name, "0:1, " + "1:" + "1" * 32_000)], START)
    assert held == {name: "0:1,1:" + "1" * 32_000}
    with pytest.raises(KafkaError, match=r"^INVALID_CONFIG .*at most 32767 bytes"):
        altered(held, [append(name, "1:" + "1" * 1000)], START)
