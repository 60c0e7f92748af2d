"""What becomes of configs that are changed, beyond what the tests of the APIs show by bytes."""

from __future__ import annotations

import pytest

from korvet.config.dynamic import merge
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import (
    Change,
    all_brokers,
    changed_broker,
    changed_topic,
    one_broker,
)

START = merge(Settings(log_cleanup_policy="compact"), {}, {})


def append(name: str, value: str) -> Change:
    return Change(name, ConfigOperation.APPEND, value)


def subtract(name: str, value: str) -> Change:
    return Change(name, ConfigOperation.SUBTRACT, value)


def test_what_a_topic_inherits_is_appended_to() -> None:
    changes = [append("cleanup.policy", "delete")]
    assert changed_topic({}, changes, START) == {"cleanup.policy": "compact,delete"}
    assert changed_topic({"cleanup.policy": "delete"}, changes, START) == {"cleanup.policy": "delete"}


def test_a_list_may_become_empty() -> None:
    changes = [subtract("cleanup.policy", "compact , delete")]
    assert changed_topic({}, changes, START) == {"cleanup.policy": ""}
    assert changed_topic({"cleanup.policy": ""}, [append("cleanup.policy", "delete")], START) == {
        "cleanup.policy": "delete"
    }


def test_what_another_version_has_set_may_only_be_deleted() -> None:
    held = {"of.another.version": "1", "segment.ms": "5"}
    assert changed_topic(held, [Change("of.another.version", ConfigOperation.DELETE, None)], START) == {
        "segment.ms": "5"
    }
    scope = one_broker(START)
    assert changed_broker(held, [Change("of.another.version", ConfigOperation.DELETE, None)], scope) == {
        "segment.ms": "5"
    }
    change = Change("of.another.version", ConfigOperation.SET, "2")
    with pytest.raises(KafkaError, match=r"of\.another\.version") as refused:
        changed_topic(held, [change], START)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    with pytest.raises(KafkaError, match=r"of\.another\.version") as refused:
        changed_broker({}, [change], scope)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_what_another_version_has_set_stays_where_something_else_is_changed() -> None:
    held = {"of.another.version": "1"}
    change = Change("log.roll.ms", ConfigOperation.SET, "5")
    assert changed_broker(held, [change], one_broker(START)) == {**held, "log.roll.ms": "5"}
    assert changed_broker(held, [change], all_brokers(START)) == {**held, "log.roll.ms": "5"}
    change = Change("segment.ms", ConfigOperation.SET, "5")
    assert changed_topic(held, [change], START) == {**held, "segment.ms": "5"}


def test_a_brokers_list_is_appended_to_what_lies_below_it() -> None:
    layers = merge(Settings(), {"log.cleanup.policy": "compact"}, {"log.cleanup.policy": ""})
    change = append("log.cleanup.policy", "delete")
    assert changed_broker({}, [change], one_broker(layers)) == {"log.cleanup.policy": "compact,delete"}
    assert changed_broker({}, [change], all_brokers(layers)) == {"log.cleanup.policy": "delete"}


def test_anew_only_what_is_named_and_what_is_fixed_is_set() -> None:
    held = {"storage.format": "batch", "offset.sequence.bits": "10", "segment.ms": "5"}
    change = Change("retention.ms", ConfigOperation.SET, "7")
    assert changed_topic(held, [change], START, anew=True) == {
        "storage.format": "batch",
        "offset.sequence.bits": "10",
        "retention.ms": "7",
    }


def test_what_was_altered_at_the_broker_contradicts_a_topic_too() -> None:
    layers = merge(Settings(), {"log.cleaner.max.compaction.lag.ms": "50"}, {})
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms=60 is more than") as refused:
        changed_topic({}, [Change("min.compaction.lag.ms", ConfigOperation.SET, "60")], layers)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "change",
    [
        Change("remote.storage.enable", ConfigOperation.DELETE, None),
        Change("remote.storage.enable", ConfigOperation.SET, "false"),
    ],
)
def test_an_archived_topic_stays_one(change: Change) -> None:
    layers = merge(Settings(lake_path="lake"), {}, {})
    with pytest.raises(KafkaError, match="cannot be switched off") as refused:
        changed_topic({"remote.storage.enable": "true"}, [change], layers)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert changed_topic({}, [Change("remote.storage.enable", ConfigOperation.SET, "true")], layers) == {
        "remote.storage.enable": "true"
    }


def test_a_list_of_the_broker_is_not_appended_to_without_end() -> None:
    rules = ",".join(f"topic-{number}=batch" for number in range(2000))
    held = {"storage.format.topics": rules}
    more = append("storage.format.topics", ",".join(f"other-{number}=batch" for number in range(500)))
    with pytest.raises(KafkaError, match="may have 32767") as refused:
        changed_broker(held, [more], all_brokers(START))
    assert refused.value.code == ErrorCode.INVALID_CONFIG
