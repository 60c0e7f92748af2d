"""Retention by the keeper, in its rounds."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest

from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.keeper import Keeper
from korvet.server.keeper.log_tasks import EnforceRetention
from tests.support.batches import Record
from tests.support.log_bench import Bench

WEEK_MS = 604_800_000


@pytest.fixture(params=["record", "batch"])
def bench(keeper: Keeper, raw_redis: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(keeper.context.redis, raw_redis, request.param)


def append_old_and_new(bench: Bench) -> int:
    """Append a record that is older than a week and one that is not; returns the offset of the latter."""
    now_ms = int(time.time() * 1000)
    bench.append(Record(b"old", b"k", now_ms - WEEK_MS - 60_000))
    return bench.append(Record(b"new", b"k", now_ms - WEEK_MS + 60_000))


def test_a_round_lets_go_what_is_too_old(keeper: Keeper, bench: Bench) -> None:
    offset = append_old_and_new(bench)
    assert keeper.lease.renew()
    keeper.round()
    assert bench.bounds().first_offset == offset
    assert bench.bounds().log_start > 0


def test_a_topic_that_only_compacts_keeps_what_is_old(keeper: Keeper, bench: Bench, raw_redis: Any) -> None:
    row = json.loads(raw_redis.hget("korvet:topics", bench.topic))
    row["configs"]["cleanup.policy"] = "compact"
    raw_redis.hset("korvet:topics", bench.topic, json.dumps(row))
    append_old_and_new(bench)
    assert keeper.lease.renew()
    keeper.round()
    assert bench.bounds().log_start == 0


def test_a_keeper_that_lost_its_lease_lets_nothing_go(keeper: Keeper, bench: Bench) -> None:
    append_old_and_new(bench)
    assert keeper.lease.renew()
    token = keeper.lease.token
    assert token is not None
    with pytest.raises(LeaseLostError):
        EnforceRetention()(keeper.context, partial(keeper.lease.check, token - 1))
    assert bench.bounds().log_start == 0


def test_a_damaged_index_is_logged_and_the_others_are_checked(
    keeper: Keeper, bench: Bench, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    append_old_and_new(bench)
    raw_redis.set(bench.partitions[1].index_key, "no index")
    assert keeper.lease.renew()
    token = keeper.lease.token
    assert token is not None
    EnforceRetention()(keeper.context, partial(keeper.lease.check, token))
    assert bench.bounds().log_start > 0
    [line] = caplog.records
    assert line.__dict__["korvet_fields"]["key"] == bench.partitions[1].stream
