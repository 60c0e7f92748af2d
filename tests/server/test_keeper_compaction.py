"""The keeper's compaction: its topics, the order of logs, and a failure of one log beside the others."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.log import compaction
from korvet.log.compaction_store import CompactionStore
from korvet.server import keeper as keeper_tasks
from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.keeper import Keeper
from korvet.server.keeper.log_tasks import CompactLogs
from korvet.telemetry import metrics
from korvet.topics.registry import TopicSpec
from tests.support.batches import Record, values
from tests.support.domain import Domain


@pytest.fixture
def keeper(settings: Settings) -> Keeper:
    made = Keeper(settings)
    assert made.lease.renew()
    return made


def filled(here: Domain, name: str, keys: int = 2, policy: str = "compact", **configs: str) -> None:
    """Make a topic with old records, twenty of them over `keys` keys."""
    overrides = {"cleanup.policy": policy, **{key.replace("_", "."): value for key, value in configs.items()}}
    here.topics.create(TopicSpec(name=name, partitions=1, configs=overrides))
    for n in range(20):
        here.append(name, Record(b"%d" % n, b"key-%d" % (n % keys), 1000 + n))


def left(here: Domain, name: str) -> list[bytes | None]:
    [result] = here.fetch(here.wanted(name))
    return values(b"".join(result.chunks))


def passes(outcome: str) -> float:
    return float(metrics.COMPACTION_PASSES.labels(outcome)._value.get())


def run(task: CompactLogs, keeper: Keeper) -> None:
    token = keeper.lease.token
    assert token is not None
    task(keeper.context, partial(keeper.lease.check, token))


def test_topics_are_compacted_whose_policy_says_so(keeper: Keeper, here: Domain) -> None:
    filled(here, "both", policy="compact,delete", retention_ms="-1")
    filled(here, "compacted")
    filled(here, "deleted", policy="delete", retention_ms="-1")
    removed = metrics.COMPACTION_RECORDS_REMOVED._value.get()
    before = passes("done")
    run(CompactLogs(), keeper)
    assert left(here, "both") == left(here, "compacted") == [b"18", b"19"]
    assert len(left(here, "deleted")) == 20
    assert metrics.COMPACTION_RECORDS_REMOVED._value.get() - removed == 36
    assert passes("done") - before == 2


def test_retention_and_compaction_of_one_topic_leave_what_both_do(keeper: Keeper, here: Domain) -> None:
    filled(here, "both", policy="compact,delete", retention_ms="3600000")
    filled(here, "compacted", retention_ms="3600000")
    offset = here.append("both", Record(b"now", b"key-0", int(time.time() * 1000)))
    keeper.round()
    [result] = here.fetch(here.wanted("both", offset=offset))
    assert (values(b"".join(result.chunks)), result.log_start) == ([b"now"], offset)
    assert left(here, "compacted") == [b"18", b"19"]


def test_the_task_has_its_turns_only_where_the_cleaner_is_enabled(
    keeper: Keeper, settings: Settings, redis_url: str
) -> None:
    intervals = {task.name: task.interval_ms for task in keeper_tasks.every(settings)}
    assert intervals["compaction"](keeper.context) == settings.log_cleaner_backoff_ms
    without = load(None, {}, {"redis.url": redis_url, "log.cleaner.enable": "false"}).settings
    assert "compaction" not in {task.name for task in keeper_tasks.every(without)}


def test_the_dirtiest_log_comes_first(keeper: Keeper, here: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        filled(here, name, min_cleanable_dirty_ratio="0")
    task = CompactLogs()
    run(task, keeper)
    for name, more in (("one", 1), ("two", 30), ("three", 5)):
        for n in range(more):
            here.append(name, Record(b"more", b"key-%d" % n, 5000))
    order: list[str] = []
    begin = CompactionStore.begin

    def watched(store: CompactionStore, partition: Any, *args: Any) -> Any:
        order.append(partition.topic)
        return begin(store, partition, *args)

    monkeypatch.setattr(CompactionStore, "begin", watched)
    run(task, keeper)
    assert order == ["two", "three", "one"]


def test_a_log_that_cannot_be_compacted_keeps_no_other_from_it_and_is_named_once(
    keeper: Keeper,
    here: Domain,
    raw_redis: Any,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    filled(here, "damaged")
    filled(here, "fine")
    raw_redis.zadd("{korvet:damaged:0}:index", {"no row": 5})
    task = CompactLogs()
    for _ in range(3):
        run(task, keeper)
    assert left(here, "fine") == [b"18", b"19"]
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "log not compacted" in line]) == 1


def test_a_lease_that_is_lost_ends_the_pass(
    keeper: Keeper, here: Domain, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_STEP_ENTRIES_MAX", 3)
    filled(here, "orders")
    turns = iter(range(100))

    def check() -> None:
        if next(turns) == 6:
            raise LeaseLostError

    task = CompactLogs()
    with pytest.raises(LeaseLostError):
        task(keeper.context, check)
    assert len(left(here, "orders")) == 20
    run(task, keeper)
    assert left(here, "orders") == [b"18", b"19"]
    assert raw_redis.exists("{korvet:orders:0}:clean:0", "{korvet:orders:0}:clean:1") == 1
