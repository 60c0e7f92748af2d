"""The steps of groups over several slots: not done, done twice or late, and what a client and the keeper find then."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot

from korvet.config.settings import Settings
from korvet.errors import KafkaError, OutcomeUnknownError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupList
from korvet.groups.offsets import Commit, Committer, ProducerTransaction
from korvet.groups.schedule import LOOK_AGAIN_MS
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.server.keeper.due import UNLIST_AFTER_MS, TakenNames
from korvet.server.keeper.group_tasks import ExpireGroups
from korvet.server.keeper.keeper import Keeper
from tests.groups.stores import LIST, NAME, Stores
from tests.groups.support import KEYS, Group, refused
from tests.lua.support import now_ms
from tests.support.dying import Dying
from tests.support.redis_requests import around_requests
from tests.support.virtual_clock import VirtualClock

OF_THE_LIST = {"schedule/write", "schedule/due", "schedule/unlist"}


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url)


@pytest.fixture
def keeper(settings: Settings) -> Iterator[Callable[[], None]]:
    """Give the turns of a keeper that has had its first one."""
    made = Keeper(settings)
    task = ExpireGroups(clock=VirtualClock())
    turn = partial(task, made.context, lambda: None)
    turn()
    yield turn
    made.context.close()


def of_age(raw: Any) -> None:
    """Let the time in the list be that long ago that nobody may create the group any more."""
    raw.zadd(LIST, {NAME: now_ms(raw) - UNLIST_AFTER_MS}, xx=True)


# ---- slots


def test_no_script_has_keys_in_two_slots_and_only_three_have_the_list(
    worker: Stores, keeper: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    begin = Redis.begin_scripts

    def watched(self: Redis, calls: Sequence[Any]) -> Any:
        for script, keys, _ in calls:
            names = [key.encode() if isinstance(key, str) else key for key in keys]
            assert len({key_slot(name) for name in names}) == 1, (script.name, keys)
            assert (LIST.encode() in names) == (script.name in OF_THE_LIST), (script.name, keys)
            seen.add(script.name)
        return begin(self, calls)

    monkeypatch.setattr(Redis, "begin_scripts", watched)
    generation = worker.group.stable("a")
    worker.group.heartbeat("a", generation)
    worker.commit(1, generation, "a")
    waiting = worker.group.waits(new="b")
    worker.group.store.poll_join(NAME, "", waiting)
    worker.group.store.resume_all([NAME])
    keeper()
    worker.group.leave(("a", ""), ("b", ""))
    transaction = ProducerTransaction(1, 0, 7)
    at = Commit(worker.bench.partition, 2, -1, "")
    assert worker.store.commit(Committer(NAME), [at], transaction=transaction) == [None]
    worker.store.end_transaction(NAME, transaction, commit=True)
    worker.forget_all()
    worker.commit()
    worker.store.delete_group(NAME)
    worker.flush()
    assert {name for name in seen if name.startswith(("group/", "schedule/"))} == OF_THE_LIST | {
        f"group/{item}"
        for item in (
            "join",
            "sync",
            "heartbeat",
            "commit",
            "commit_transaction",
            "end_transaction",
            "expire_transactions",
            "look",
            "resume",
            "advance",
            "leave",
            "forget",
            "delete",
        )
    }


# ---- creation


def test_a_worker_that_dies_before_it_creates_the_group_leaves_a_name_that_nobody_sees(
    worker: Stores, keeper: Callable[[], None], settings: Settings
) -> None:
    schedule = worker.group.store.schedule
    with pytest.raises(StorageUnavailableError):
        schedule.create(NAME, dying([[b"UNLISTED", now_ms(worker.raw)]]))
    assert worker.is_listed()
    assert GroupList(worker.redis, KEYS).all_groups() == []
    assert GroupList(worker.redis, KEYS).summaries([NAME]) == []
    refused("GROUP_ID_NOT_FOUND", lambda: worker.store.delete_group(NAME))
    assert OffsetExpiry(worker.store, worker.group.store, 0, 0).expire([NAME]) == ((0, 0), [])
    # Another worker may be about to create it.
    keeper()
    assert worker.is_listed()
    of_age(worker.raw)
    keeper()
    assert not worker.is_listed()
    assert worker.group.joined().generation == 1
    assert worker.is_listed()


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("create", [lambda worker: worker.group.joined(), lambda worker: worker.commit()])
def test_a_creation_that_is_killed_at_any_step_makes_no_group_that_is_not_listed(
    worker: Stores, other: Stores, dying: Dying, create: Callable[[Stores], object], *, served: bool
) -> None:
    for at in range(50):
        dying.at(at, served=served)
        with contextlib.suppress(StorageUnavailableError):
            create(worker)
        dying.lives()
        assert other.is_listed() or not other.exists()
        if not dying.was_killed:
            break
        other.raw.delete(LIST, other.group.state, KEYS.group_offsets(NAME), *KEYS.membership_of(NAME))
    assert at >= 3


def dying(replies: list[list[Any]]) -> Callable[[int], list[Any]]:
    """Return a script that has these replies, and then a worker that is gone."""

    def run(_listed_ms: int) -> list[Any]:
        if not replies:
            raise StorageUnavailableError("killed")
        return replies.pop(0)

    return run


def test_a_creation_that_comes_too_late_is_refused(worker: Stores) -> None:
    schedule = worker.group.store.schedule
    error = refused("COORDINATOR_NOT_AVAILABLE", lambda: schedule.create(NAME, lambda _: [b"UNLISTED", 5]))
    assert "too long" in error.message


@pytest.mark.parametrize("create", [lambda worker: worker.group.joined(), lambda worker: worker.commit()])
def test_a_name_that_is_taken_off_while_its_group_is_created_comes_back(
    worker: Stores, monkeypatch: pytest.MonkeyPatch, create: Callable[[Stores], object]
) -> None:
    """It was listed twice, and who deleted the first group has seen the time of the second one."""
    begin = Redis.begin_scripts

    def taken_off(self: Redis, calls: Sequence[Any]) -> Any:
        if calls[0][0].name in {"group/join", "group/commit"}:
            worker.raw.delete(LIST)
        return begin(self, calls)

    monkeypatch.setattr(Redis, "begin_scripts", taken_off)
    create(worker)
    assert not worker.is_listed()
    worker.flush()
    assert worker.is_listed()


# ---- the keeper


def test_a_group_without_deadlines_is_looked_at_seldom(worker: Stores, keeper: Callable[[], None]) -> None:
    worker.commit()
    worker.flush()
    keeper()
    left = worker.raw.zscore(LIST, NAME) - now_ms(worker.raw)
    assert LOOK_AGAIN_MS - 60_000 < left <= LOOK_AGAIN_MS


def after_advance(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` done once, just after the keeper has looked at a group."""
    scripts = Redis.scripts

    def and_act(self: Redis, calls: Sequence[Any]) -> Any:
        replies = scripts(self, calls)
        if calls and calls[0][0].name == "group/advance":
            monkeypatch.setattr(Redis, "scripts", scripts)
            act()
        return replies

    monkeypatch.setattr(Redis, "scripts", and_act)


def test_a_deadline_that_is_made_while_the_keeper_looks_is_in_the_list(
    worker: Stores, keeper: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.commit()
    worker.flush()

    def join() -> None:
        worker.group.joined(new="a")
        worker.flush()

    after_advance(monkeypatch, join)
    keeper()
    assert worker.raw.zscore(LIST, NAME) <= worker.raw.zscore(worker.group.deadlines, "a")


def test_a_keeper_that_dies_between_two_steps_loses_no_deadline(
    worker: Stores, keeper: Callable[[], None], settings: Settings
) -> None:
    worker.group.stable("a")
    worker.flush()
    worker.raw.zadd(LIST, {NAME: 1})
    assert worker.group.store.schedule.take_due(10).times_ms == {NAME.encode(): 1}
    keeper()
    assert worker.raw.zscore(LIST, NAME) > worker.raw.zscore(worker.group.deadlines, "a")
    following = Keeper(settings).context
    ExpireGroups()(following, lambda: None)
    assert worker.raw.zscore(LIST, NAME) <= worker.raw.zscore(worker.group.deadlines, "a")


def test_a_turn_that_fails_in_its_middle_is_followed_by_one_that_looks_at_all_groups(
    worker: Stores, keeper: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.group.stable("a")
    worker.flush()
    worker.raw.zadd(LIST, {NAME: 1})
    begin = Redis.begin_scripts

    def away(self: Redis, calls: Sequence[Any]) -> Any:
        if calls and calls[0][0].name == "group/advance":
            raise OutcomeUnknownError("away")
        return begin(self, calls)

    monkeypatch.setattr(Redis, "begin_scripts", away)
    with pytest.raises(StorageUnavailableError):
        keeper()
    monkeypatch.setattr(Redis, "begin_scripts", begin)
    worker.group.time_is_up_for("a")
    keeper()
    assert worker.group.ids() == {"a"}
    assert worker.raw.zscore(LIST, NAME) <= worker.raw.zscore(worker.group.deadlines, "a")


def test_a_group_that_is_taken_again_while_it_is_looked_at_is_looked_at_again(
    worker: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, taken = Keeper(settings).context, TakenNames("group")
    clock = VirtualClock()
    turn = partial(ExpireGroups(taken, clock=clock), context, lambda: None)
    turn()
    worker.group.stable("a")
    worker.flush()
    worker.raw.zadd(LIST, {NAME: 1})

    def take() -> None:
        worker.group.time_is_up_for("a")
        worker.raw.zadd(LIST, {NAME: 1})
        assert taken.take(context, worker.group.store.schedule, clock.monotonic())

    after_advance(monkeypatch, take)
    turn()
    assert worker.group.ids() == set()
    context.close()


def test_sessions_that_ended_while_a_node_was_away_begin_again(
    worker: Stores, keeper: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster the others' replies stand, and those of that node are errors in their places."""
    here, there = worker.group, Group(worker.redis, worker.raw, "there")
    for group in (here, there):
        group.stable("a")
        group.store.schedule.flush()
        group.time_is_up_for("a")
        worker.raw.zadd(LIST, {group.name: 1})
    scripts = Redis.scripts

    def one_is_away(self: Redis, calls: Sequence[Any]) -> Any:
        replies = iter(scripts(self, [call for call in calls if "there" not in str(call[1][0])]))
        return [
            StorageUnavailableError("away") if "there" in str(keys[0]) else next(replies)
            for _, keys, _ in calls
        ]

    monkeypatch.setattr(Redis, "scripts", one_is_away)
    keeper()
    monkeypatch.setattr(Redis, "scripts", scripts)
    assert (here.ids(), there.ids()) == (set(), {"a"})
    worker.raw.zadd(LIST, {"there": 1})
    keeper()
    assert there.ids() == {"a"}
    there.time_is_up_for("a")
    worker.raw.zadd(LIST, {"there": 1})
    keeper()
    assert there.ids() == set()


def test_the_list_of_the_version_before_is_valid(worker: Stores, keeper: Callable[[], None]) -> None:
    """Its scripts wrote the next deadline of each group there, +inf without one, together with the group."""
    idle = Group(worker.redis, worker.raw, "idle")
    for group, time_ms in ((worker.group, 1.0), (idle, float("inf"))):
        group.stable("a")
        group.store.schedule.flush()
        worker.raw.zadd(LIST, {group.name: time_ms})
        group.time_is_up_for("a")
    keeper()
    assert (worker.group.ids(), idle.ids()) == (set(), {"a"})
    idle.waits(new="b")
    idle.store.schedule.flush()
    assert worker.raw.zscore(LIST, "idle") <= now_ms(worker.raw) + 60_000


# ---- deletion


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("how", ["delete_group", "forget_all"])
def test_a_deletion_that_is_killed_at_any_step_is_seen_by_nobody_as_a_half(
    worker: Stores, other: Stores, keeper: Callable[[], None], dying: Dying, how: str, *, served: bool
) -> None:
    delete: dict[str, Callable[[Stores], None]] = {
        "delete_group": lambda of: of.store.delete_group(NAME),
        "forget_all": Stores.forget_all,
    }
    for at in range(50):
        other.commit()
        other.flush()
        assert other.redis_groups() == [(b"billing", b"0-1")]
        dying.at(at, served=served)
        with contextlib.suppress(StorageUnavailableError):
            delete[how](worker)
        dying.lives()
        if not dying.was_killed:
            break
        [row] = other.store.fetch([(NAME, TopicPartition("orders", 0))])
        assert (row is not None) == other.exists()
        assert other.is_listed() or not other.exists()
        assert other.exists() or not other.redis_groups()
        if other.exists():
            delete[how](other)
        keeper()
        assert not other.is_listed()
        assert other.redis_groups() == []
        assert worker.raw.keys("*:group:*") == []
    assert at > 4


def test_an_unlisting_that_comes_twice_or_late_leaves_a_group_that_was_created_again(worker: Stores) -> None:
    schedule = worker.group.store.schedule
    worker.commit()
    worker.flush()
    mark = schedule.mark(NAME)
    worker.raw.delete(worker.group.state, KEYS.group_offsets(NAME))
    worker.commit(2)
    schedule.unlist(NAME, mark)
    schedule.unlist(NAME, mark)
    assert worker.is_listed()
    worker.raw.zadd(LIST, {NAME: 1})
    due = schedule.take_due(10)
    worker.raw.delete(worker.group.state, KEYS.group_offsets(NAME))
    worker.commit(3)
    schedule.unlist(NAME.encode(), due.again_ms)
    assert worker.is_listed()


def test_a_group_that_a_member_joins_while_it_is_deleted_stays_or_is_a_new_one(
    worker: Stores, other: Stores
) -> None:
    """A member comes before each request of the deletion in turn."""
    outcomes = set[str]()
    for at in range(50):
        worker.commit()
        worker.flush()
        left = itertools.count(at, -1)
        joined: list[str] = []

        def joining(begin: Any, *args: Any, left: Any = left, joined: list[str] = joined) -> Any:
            if next(left) == 0:
                joined.append(other.group.joined(new="a").member_id)
            return begin(*args)

        try:
            with around_requests(worker.redis, joining):
                worker.store.delete_group(NAME)
        except KafkaError as error:
            outcomes.add(error.code.name)
        else:
            outcomes.add("is a new one" if joined else "is gone")
        if not joined:
            break
        assert other.group.ids() == {"a"}
        assert other.is_listed()
        other.group.leave(("a", ""))
        worker.store.delete_group(NAME)
        assert not worker.exists()
    assert outcomes == {"NON_EMPTY_GROUP", "is a new one", "is gone"}
