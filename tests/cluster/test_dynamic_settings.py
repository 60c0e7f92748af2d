"""A broker's settings in effect, on a real Redis: what is applied, when, and what is left out."""

from __future__ import annotations

import logging

import pytest

from korvet.cluster.dynamic_settings import BrokerConfigStore, LiveSettings
from korvet.config.dynamic import DEFAULT
from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicSpec
from korvet.topics.types import TopicRef
from tests.support.domain import Domain

OWN = "3"
START = Settings(broker_id=3, log_retention_ms=5)


@pytest.fixture
def store(here: Domain) -> BrokerConfigStore:
    return BrokerConfigStore(here.redis, Keys("korvet"))


@pytest.fixture
def live(there: Domain) -> LiveSettings:
    return LiveSettings(START, BrokerConfigStore(there.redis, Keys("korvet")))


def put(store: BrokerConfigStore, whose: str, row: dict[str, str]) -> None:
    store.alter(whose, lambda _held: row)


def test_only_its_own_row_and_that_of_all_are_a_brokers(live: LiveSettings, store: BrokerConfigStore) -> None:
    put(store, "4", {"log.retention.ms": "7"})
    live.refresh()
    assert live.settings == START
    put(store, DEFAULT, {"log.retention.ms": "6"})
    assert live.settings == START, "it is not refreshed"
    live.refresh()
    assert live.settings.log_retention_ms == 6
    put(store, DEFAULT, {})
    put(store, OWN, {"log.retention.ms": "8"})
    live.refresh()
    assert live.layers.broker == {"log.retention.ms": "8"}
    assert live.settings.log_retention_ms == 8
    put(store, OWN, {})
    live.refresh()
    assert live.settings == START


def test_a_follower_gets_the_settings_and_every_change_once(
    live: LiveSettings, store: BrokerConfigStore
) -> None:
    used: list[int] = []
    live.follow(lambda settings: used.append(settings.log_retention_ms))
    for text in ("6", "6", "7"):
        put(store, DEFAULT, {"log.retention.ms": text})
        live.refresh()
        live.refresh()
    # A change without an effect notifies nobody.
    put(store, OWN, {"log.retention.ms": "7"})
    live.refresh()
    assert used == [5, 6, 7]
    assert live.layers.broker == {"log.retention.ms": "7"}


def test_topics_inherit_settings_unless_a_config_is_set_on_them(
    here: Domain, live: LiveSettings, store: BrokerConfigStore
) -> None:
    here.topics.create(TopicSpec(name="plain"))
    here.topics.create(TopicSpec(name="own", configs={"retention.ms": "77"}))
    partitions = here.topics.get("plain").partitions
    live.follow(here.topics.apply_settings)
    put(store, DEFAULT, {"log.retention.ms": "6", "storage.format": "batch"})
    live.refresh()
    assert here.topics.get("plain").config.retention_ms == 6
    assert here.topics.get("own").config.retention_ms == 77
    assert here.topics.resolve(TopicRef("", here.topics.get("plain").id)).config.retention_ms == 6
    # An existing topic keeps its format; a new one has the new format.
    assert here.topics.get("plain").config.format == "record"
    assert here.topics.get("plain").partitions == partitions
    assert here.topics.create(TopicSpec(name="new")).config.format == "batch"
    put(store, DEFAULT, {})
    live.refresh()
    assert here.topics.get("plain").config.retention_ms == START.log_retention_ms


def test_an_invalid_value_is_left_out_with_one_log_line(
    live: LiveSettings, store: BrokerConfigStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, DEFAULT, {"log.retention.ms": "soon", "message.max.bytes": "7"})
    with caplog.at_level(logging.ERROR):
        live.refresh()
        live.refresh()
        put(store, OWN, {"log.roll.ms": "9"})
        live.refresh()
    assert len(caplog.records) == 1
    assert "log.retention.ms" in str(caplog.records[0].__dict__)
    settings = live.settings
    assert (settings.log_retention_ms, settings.message_max_bytes, settings.log_roll_ms) == (5, 7, 9)


def test_while_redis_is_away_the_settings_stay(
    there: Domain, live: LiveSettings, store: BrokerConfigStore
) -> None:
    put(store, DEFAULT, {"log.retention.ms": "6"})
    live.refresh()
    there.redis.close()
    with pytest.raises(StorageUnavailableError):
        live.refresh()
    assert live.settings.log_retention_ms == 6
