"""Settings that clients alter while brokers run: over restarts and reloads, and in the keeper's turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.cluster.dynamic_settings import BrokerConfigStore
from korvet.config.dynamic import DEFAULT
from korvet.config.settings import Settings
from korvet.redis.keys import Keys
from korvet.server.keeper.keeper import Keeper
from tests.handlers.configs import (
    BROKER,
    DYNAMIC_BROKER,
    STATIC,
    chain,
    change,
    config,
    configs_of,
    refused,
    value,
)
from tests.support.batches import Record
from tests.support.broker import Broker, korvet_broker
from tests.support.log_bench import Bench
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

ALL = ""


def delete_altered(client: Client, *names: str) -> None:
    for name in names:
        result = configs_of(client, BROKER, name).items()
        altered = [key for key, item in result if item.config_source < STATIC]
        change(client, BROKER, name, dict.fromkeys(altered))


def counting(client: Client) -> list[tuple[str | None, int]]:
    """Return the value of message.max.bytes that counts and the next one, with their sources."""
    result = chain(config(client, BROKER, "0", "message.max.bytes", synonyms=True))
    return [(text, source) for _name, text, source in result[:2]]


def test_what_is_set_stays_over_restarts_and_lies_over_a_reloaded_file(
    tmp_path: Path, redis_url: str
) -> None:
    file = tmp_path / "korvet.toml"
    file.write_text('"message.max.bytes" = 1000\n"log.roll.ms" = 1000\n')
    flags = ("--redis-url", redis_url, "--config", str(file))
    with korvet_broker(tmp_path / "first", *flags, workers=1) as broker, Client(broker.address) as client:
        change(client, BROKER, "0", {"message.max.bytes": "90"})
        change(client, BROKER, ALL, {"log.retention.bytes": "80"})
        broker.stop()
    with korvet_broker(tmp_path / "second", *flags, workers=1) as broker:
        said = f"message.max.bytes start=1000 origin={file} in_effect=90 layer=broker"
        assert [said in line for line in broker.log().splitlines() if "altered by clients" in line] == [True]
        with Client(broker.address) as client:
            assert counting(client) == [("90", DYNAMIC_BROKER), ("1000", STATIC)]
            assert value(client, BROKER, "0", "log.retention.bytes") == "80"
        file.write_text('"message.max.bytes" = 2000\n"log.roll.ms" = 2000\n')
        broker.reload()
        with Client(broker.address) as client:
            assert counting(client) == [("90", DYNAMIC_BROKER), ("2000", STATIC)]
            assert value(client, BROKER, "0", "log.roll.ms") == "2000"
            change(client, BROKER, "0", {"message.max.bytes": None})
            assert value(client, BROKER, "0", "message.max.bytes") == "2000"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with korvet_broker(tmp_path_factory.mktemp("broker"), workers=1) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connected:
        yield connected
        delete_altered(connected, "0", ALL)


def altered_in_log(broker: Broker, *numbers: str) -> list[str]:
    """Return those of the numbers that the broker has logged as values of its settings."""
    logged = [line for line in broker.log().splitlines() if "settings altered by a client broker=0 " in line]
    return [number for number in numbers if any(f"log.roll.ms={number}" in line for line in logged)]


def test_what_clients_alter_is_logged_at_the_level_of_its_time(broker: Broker, client: Client) -> None:
    # Each line is written before the settings that it names apply.
    change(client, BROKER, "0", {"log.roll.ms": "4711"})
    refused(client, BROKER, "0", {"log.roll.ms": "soon"})
    change(client, BROKER, "0", {"log.roll.ms": "4714"}, validate_only=True)
    change(client, BROKER, "0", {"log.level": "error"})
    change(client, BROKER, "0", {"log.roll.ms": "4712"})
    change(client, BROKER, "0", {"log.level": None})
    change(client, BROKER, "0", {"log.roll.ms": "4713"})
    assert altered_in_log(broker, "4711", "4712", "4713", "4714") == ["4711", "4713"]


def test_the_level_of_a_logger_applies_at_once_and_to_that_one_alone(broker: Broker, client: Client) -> None:
    for levels, number in (("korvet.topics.config_admin=error", "4721"), ("korvet.groups=error", "4722")):
        change(client, BROKER, "0", {"log.levels": levels})
        change(client, BROKER, "0", {"log.roll.ms": number})
    assert altered_in_log(broker, "4721", "4722") == ["4722"]


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, log_retention_ms=-1)


def test_each_turn_of_a_task_has_the_settings_of_its_time(keeper: Keeper, raw_redis: Any) -> None:
    bench = Bench(keeper.context.redis, raw_redis, "record")
    now_ms = int(time.time() * 1000)
    bench.append(Record(b"old", b"k", now_ms - 60_000))
    offset = bench.append(Record(b"new", b"k", now_ms))
    assert keeper.lease.renew()
    keeper.round()
    assert bench.bounds().first_offset < offset
    store = BrokerConfigStore(keeper.context.redis, Keys("korvet"))
    altered = {
        "log.retention.ms": "30000",
        "log.cleaner.backoff.ms": "7",
        "log.cleaner.dedupe.buffer.size": "65536",
    }
    store.alter(DEFAULT, lambda _row: altered)
    keeper.round()
    assert bench.bounds().first_offset == offset
    intervals = {task.name: task.interval_ms(keeper.context) for task in keeper._tasks}
    assert intervals["compaction"] == 7
    assert keeper.context.settings.log_cleaner_dedupe_buffer_size == 65_536
