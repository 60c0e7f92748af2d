"""Blocks of producer ids from a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.producers import ProducerStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

KEYS = Keys("korvet")


@pytest.fixture
def store(redis_url: str) -> Iterator[ProducerStore]:
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield ProducerStore(client, KEYS)
    client.close()


def test_blocks_follow_each_other_from_zero(store: ProducerStore) -> None:
    assert [store.next_block(size) for size in (1000, 1, 10)] == [0, 1000, 1001]


def test_nobody_gets_the_same_block(store: ProducerStore) -> None:
    jobs = [gevent.spawn(store.next_block, 10) for _ in range(50)]
    gevent.joinall(jobs, timeout=60, raise_error=True)
    assert sorted(job.get() for job in jobs) == list(range(0, 500, 10))


@pytest.mark.parametrize("stored", ["x", str(2**63 - 5), "-100"])
def test_a_counter_that_cannot_count_is_an_error_that_names_it(
    store: ProducerStore, raw_redis: Any, stored: str
) -> None:
    raw_redis.set(KEYS.producer_ids, stored)
    with pytest.raises(KafkaError, match="korvet:producer-ids") as refused:
        store.next_block(10)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
