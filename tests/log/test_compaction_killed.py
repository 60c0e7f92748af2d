"""A pass of compaction that ends in the middle: killed at every step, overtaken, or with its topic gone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log import compaction
from korvet.log.compaction import Compactor
from korvet.log.compaction_store import CompactionSupersededError
from korvet.log.trim import Trim, TrimStore
from korvet.redis.replies import MemoryFullError
from tests.log.compacting import CompactedLog, Held
from tests.support.batches import TIMESTAMP
from tests.support.domain import Domain
from tests.support.killed_redis import KilledRedis
from tests.support.log_bench import LAYOUTS, Layout
from tests.support.refusals import refusal

pytestmark = pytest.mark.slow

FORMATS = pytest.mark.parametrize("layout", LAYOUTS)
OLD_MS = 5


class Killed(BaseException):
    """The process is gone, and what it has left stays."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_STEP_ENTRIES_MAX", 5)


def half_compacted(here: Domain, raw: Any, layout: Layout) -> tuple[CompactedLog, int]:
    """Return a log with a compacted part that has tombstones due, and the end of the part."""
    log = CompactedLog(here, raw, layout)
    log.fill(4)
    end = log.compacted().compacted_end
    raw.hset(log.partition.state, "clean_history", f"{end}@{OLD_MS}")
    log.fill(4, keys=5)
    return log, end


def purged(compacted_end: int) -> Callable[[Held], bool]:
    """Tell which records a pass removes because they are tombstones that lay in the compacted part before."""
    return lambda held: held.value is None and held.offset < compacted_end


def contents(log: CompactedLog) -> list[Held]:
    """Return what a reader of a broker that was just started sees."""
    return log.read()


def check_all(log: CompactedLog, old_end: int) -> None:
    """Let the next keeper work, and check that it changes nothing else."""
    log.fill(3, keys=5)
    keeper = log.compactor_on(log.here.redis)
    while log.compact(keeper) is not None:
        pass
    end = log.field("clean_end")
    assert end == log.end
    assert contents(log) == log.expected(end, purged(old_end))
    assert log.raw.exists(*log.partition.compacted) == 1
    assert not log.raw.hexists(log.partition.state, "clean_token")
    latest = {held.key: held.value for held in log.model}
    assert {held.key: held.value for held in contents(log)} == {
        key: latest[key] for key in {held.key for held in contents(log)}
    }
    assert {key for key, value in latest.items() if value is not None} <= {held.key for held in contents(log)}


@FORMATS
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_no_live_key_is_lost_at_whatever_step_a_pass_is_killed(
    here: Domain, raw_redis: Any, redis_url: str, layout: Layout, *, done: bool
) -> None:
    kills = 0
    for at in count(1):
        raw_redis.flushall()
        here.topics.reload()
        log, old_end = half_compacted(here, raw_redis, layout)
        after = log.end
        dying = KilledRedis(redis_url, at, Killed(), sent=done)
        try:
            log.compact(log.compactor_on(dying))
        except Killed:
            kills += 1
        else:
            break
        finally:
            dying.close()
        seen = contents(log)
        assert seen in (log.expected(old_end), log.expected(after, purged(old_end)))
        check_all(log, old_end)
    assert kills > 10


@FORMATS
def test_of_two_keepers_the_one_that_began_last_ends_its_pass(
    here: Domain, raw_redis: Any, layout: Layout
) -> None:
    overtaken = 0
    for at in count():
        raw_redis.flushall()
        here.topics.reload()
        log, old_end = half_compacted(here, raw_redis, layout)
        turns = count()
        other = log.compactor_on(here.redis)

        def meanwhile(
            log: CompactedLog = log, other: Compactor = other, at: int = at, turns: Any = turns
        ) -> None:
            if next(turns) == at:
                log.compact(other)

        try:
            log.compact(check=meanwhile)
        except CompactionSupersededError:
            overtaken += 1
        end = log.field("clean_end")
        assert contents(log) == log.expected(end, purged(old_end))
        check_all(log, old_end)
        if next(turns) <= at:
            break
    assert overtaken > 5


@FORMATS
@pytest.mark.parametrize("re_created", [False, True], ids=["deleted", "re-created"])
def test_a_topic_that_goes_in_the_middle_of_a_pass_ends_it(
    here: Domain, raw_redis: Any, layout: Layout, *, re_created: bool
) -> None:
    log, _ = half_compacted(here, raw_redis, layout)
    turns = count()
    others: list[CompactedLog] = []

    def meanwhile() -> None:
        if next(turns) == 6:
            here.topics.delete([log.topic])
            if re_created:
                others.append(CompactedLog(here, raw_redis, layout))
                others[0].fill(9)

    assert refusal(log.compact, check=meanwhile) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not re_created:
        assert raw_redis.keys("*tables*") == []
        return
    [other] = others
    assert other.read() == other.model
    assert not raw_redis.exists(*other.partition.compacted)
    assert other.read() == other.expected(0)
    assert other.compacted().compacted_end == other.end
    assert other.read() == other.expected(other.end)


@FORMATS
@pytest.mark.parametrize("at", [1, 3, 5, 7])
def test_a_topic_that_is_only_marked_as_deleted_in_the_middle_of_a_pass_ends_it(
    here: Domain, raw_redis: Any, layout: Layout, at: int
) -> None:
    log, _ = half_compacted(here, raw_redis, layout)
    turns, before = count(), dict[bytes, Any]()

    def meanwhile() -> None:
        if next(turns) == at:
            here.topics.delete([log.topic], until=0)
            before.update({key: raw_redis.dump(key) for key in raw_redis.scan_iter("*tables*")})

    assert refusal(log.compact, check=meanwhile) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert before
    assert {key: raw_redis.dump(key) for key in raw_redis.scan_iter("*tables*")} == before
    [deleted] = here.topics.list_unfinished("deleting")
    assert list(here.topics.delete_in_steps(deleted))
    assert raw_redis.keys("*tables*") == []


@FORMATS
@pytest.mark.parametrize("part", [3, 25, 39, 40])
def test_a_start_that_moves_in_the_middle_of_a_pass_holds(
    here: Domain, raw_redis: Any, layout: Layout, part: int
) -> None:
    log, old_end = half_compacted(here, raw_redis, layout)
    start = ([held.offset for held in log.model] + [log.end])[part]
    moves: set[int] = set()
    for at in (4, 9):

        def meanwhile(turns: Any = count(), at: int = at) -> None:  # noqa: B008 - one for each pass
            if next(turns) == at:
                trims = TrimStore(here.redis)
                while trims.trim([Trim(log.partition, start)])[0].more:  # type: ignore[union-attr]  # an error has no `more`, and fails the test
                    pass
                moves.add(at)

        log.compact(check=meanwhile)
        end = max(log.field("clean_end"), old_end)
        expected = [held for held in log.expected(end, purged(old_end)) if held.offset >= start]
        assert log.read(start) == expected
        log.append((b"later", b"%d" % at), timestamp=TIMESTAMP)
    assert 4 in moves
    assert log.compact() is not None
    end = log.field("clean_end") or log.counters.start
    assert log.read(start) == [held for held in log.expected(end, purged(old_end)) if held.offset >= start]


@FORMATS
def test_a_pass_that_finds_memory_full_leaves_nothing(here: Domain, raw_redis: Any, layout: Layout) -> None:
    log, old_end = half_compacted(here, raw_redis, layout)
    raw_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(MemoryFullError):
            log.compact()
        assert raw_redis.exists(*log.partition.compacted) == 1
        assert not raw_redis.hexists(log.partition.state, "clean_token")
        assert contents(log) == log.expected(old_end)
    finally:
        raw_redis.config_set("maxmemory", 0)
    check_all(log, old_end)
