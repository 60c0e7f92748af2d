"""The log directory of DescribeLogDirs, on a real Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import StorageUnavailableError
from korvet.log.stats import LogDirSpace, LogStatsStore, RedisLogDir
from korvet.redis.server_info import UsageStore
from korvet.topics.registry import Topic, TopicSpec
from tests.support.domain import Domain

MEBIBYTE = 1 << 20


@pytest.fixture
def log_dir(here: Domain) -> RedisLogDir:
    return RedisLogDir("place", LogStatsStore(here.redis), UsageStore(here.redis, with_file=False))


@pytest.fixture
def limited(raw_redis: Any) -> Iterator[Any]:
    """Give a client of a Redis with maxmemory, and take that away again."""
    raw_redis.config_set("maxmemory", 100 * MEBIBYTE)
    yield raw_redis
    raw_redis.config_set("maxmemory", 0)


def made(here: Domain, storage_format: str, partitions: int = 1) -> Topic:
    return here.topics.create(
        TopicSpec(name="orders", partitions=partitions, configs={"storage.format": storage_format})
    )


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_size_is_what_the_entries_hold(
    here: Domain, log_dir: RedisLogDir, raw_redis: Any, storage_format: str
) -> None:
    topic = made(here, storage_format, 3)
    for size in (10, 500):
        here.append("orders", b"x" * size, partition=1)
    entries = raw_redis.xrange("korvet:orders:1")
    held = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert held > 510
    assert log_dir.sizes(topic.partitions) == [0, held, 0]


def test_more_logs_than_one_round_trip_holds_are_returned_in_order(
    here: Domain, log_dir: RedisLogDir
) -> None:
    topic = made(here, "batch", 201)
    here.append("orders", b"x", partition=200)
    sizes = log_dir.sizes(topic.partitions)
    assert (len(sizes), set(sizes[:200])) == (201, {0})
    assert sizes[200]


def test_a_log_that_is_gone_has_no_size(here: Domain, log_dir: RedisLogDir) -> None:
    topic = made(here, "record")
    here.topics.delete(topic)
    assert log_dir.sizes(topic.partitions) == [None]


def test_a_log_whose_state_cannot_be_read_has_no_size_and_a_line_in_the_log(
    here: Domain, log_dir: RedisLogDir, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made(here, "record", 2)
    raw_redis.hset("{korvet:orders:0}:state", "bytes", "many")
    with caplog.at_level(logging.WARNING):
        assert log_dir.sizes(topic.partitions) == [None, 0]
    assert "log without a size" in caplog.text


def test_without_a_limit_the_room_is_not_known(log_dir: RedisLogDir) -> None:
    assert log_dir.space() == LogDirSpace(-1, -1)


def test_the_room_is_what_maxmemory_leaves(log_dir: RedisLogDir, limited: Any) -> None:
    before = log_dir.space()
    assert before.total_bytes == 100 * MEBIBYTE
    assert 50 * MEBIBYTE < before.usable_bytes < 100 * MEBIBYTE
    limited.set("other", b"x" * 10 * MEBIBYTE)
    assert log_dir.space().usable_bytes <= before.usable_bytes - 10 * MEBIBYTE
    limited.config_set("maxmemory", MEBIBYTE)
    assert log_dir.space() == LogDirSpace(MEBIBYTE, 0)


def test_where_redis_is_away_there_is_no_size_and_the_room_is_not_known(
    here: Domain, log_dir: RedisLogDir
) -> None:
    topic = made(here, "record")
    here.redis.close()
    assert log_dir.space() == LogDirSpace(-1, -1)
    with pytest.raises(StorageUnavailableError):
        log_dir.sizes(topic.partitions)
