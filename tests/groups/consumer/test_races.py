"""What others do between two steps of one request, and workers that fail between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import Event

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.store import ConsumerStore
from tests.groups.consumer.support import NAME, Client, Consumers, settle
from tests.groups.consumer.test_migration import SECONDS_MAX, ClassicClient, classic_group, settled
from tests.groups.support import KEYS, refused
from tests.support.virtual_clock import VirtualClock


def first(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, action: Callable[[], object]) -> None:
    """Have this done before the next call of a method."""
    method = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        action()
        return method(self, *args, **options)

    monkeypatch.setattr(owner, name, wrapped)


def counted(at: Consumers, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Return a list of the calls of these methods of a worker's store from now on."""
    calls: list[str] = []

    def called(name: str, method: Callable[..., Any], *args: Any) -> Any:
        calls.append(name)
        return method(*args)

    for name in names:
        monkeypatch.setattr(at.groups.store, name, partial(called, name, getattr(at.groups.store, name)))
    return calls


def test_a_late_request_says_nothing_of_what_a_later_answer_gave(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Client(other, "one", "orders"), Client(other, "two", "orders")
    one.join()
    late = Client(at, "one", "orders")

    def meanwhile() -> None:
        one.join()
        two.join()
        one.send()
        assert len(one.assigned) == 2

    first(monkeypatch, ConsumerGroups, "step", meanwhile)
    refused("COORDINATOR_LOAD_IN_PROGRESS", late.join)
    two.beat()
    assert two.has() == {}, "the other one has not revoked anything"
    settle(one, two)
    assert (len(one.assigned), len(two.assigned)) == (2, 2)


@pytest.mark.parametrize("before", [1, 2])
def test_a_classic_member_joins_while_others_join_and_leave(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    old = classic_group(other, before)
    Client(at, "one", "orders").join()
    settled([], old)
    late = ClassicClient(at, "orders")

    def meanwhile() -> None:
        if before == 1:
            ClassicClient(other, "orders").join()
        else:
            other.classic.leave(NAME, [(old[0].member_id, "")])

    first(monkeypatch, ClassicMembers, "_check_protocols", meanwhile)
    late.join()
    assert late.member_id in [member.member_id for member in at.describe().members]


def test_a_static_member_that_is_replaced_while_a_target_is_computed_gets_its_part_of_it(
    at: Consumers, other: Consumers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, one = Client(at, "away", "orders", instance="i"), Client(at, "one", "orders")
    away.join()
    one.join()
    settle(away, one)
    away.leave(-2)
    back, two, three = (
        *(Client(other, "back", "orders", instance="i"), Client(at, "two", "orders")),
        Client(at, "three", "orders"),
    )
    coming: list[gevent.Greenlet[..., Any]] = []

    def meanwhile() -> None:
        coming.append(clock.spawn(back.join))
        clock.run_until_idle()

    two.join()
    first(monkeypatch, ConsumerStore, "assign", meanwhile)
    three.join()
    gevent.joinall(coming, raise_error=True, timeout=SECONDS_MAX)
    settle(back, one, two, three)
    assert [len(item.assigned) for item in (back, one, two, three)] == [1, 1, 1, 1]
    assert at.state() == "Stable"


def test_a_static_member_that_is_replaced_while_all_are_read_is_among_them(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry must not take its topics for ones that nobody is subscribed to."""
    away = Client(at, "away", "orders", instance="i")
    away.join()
    away.leave(-2)
    first(monkeypatch, ConsumerStore, "_members", Client(other, "back", "orders", instance="i").join)
    assert [member.member_id for member in at.store.consumers.all_members(NAME)] == ["back"]


def test_who_loses_its_claim_gets_an_assignment_all_the_same(
    at: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        at.raw.hset(KEYS.group_state(NAME), mapping={"assigner": "another", "assigner_until": 1})

    first(monkeypatch, ConsumerStore, "assign", meanwhile)
    one = Client(at, "one", "orders")
    assert (one.join().epoch, one.has()) == (1, {"orders": [0, 1, 2, 3]})


def test_a_worker_that_fails_while_it_computes_a_target_gives_its_claim_back(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the row of a member is malformed")

    first(monkeypatch, ConsumerStore, "all_members", fails)
    refused("KAFKA_STORAGE_ERROR", Client(at, "one", "orders").join)
    assert not at.raw.hexists(KEYS.group_state(NAME), "assigner")
    assert Client(other, "two", "orders").join().epoch == 2


def test_who_waits_for_a_target_is_woken_when_it_is_there_and_does_not_poll(
    at: Consumers, other: Consumers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = counted(at, monkeypatch, "claim")
    compute, may_go_on = other.groups._compute, Event()

    def compute_later(*args: Any) -> bool:
        clock.wait(may_go_on)
        return compute(*args)

    monkeypatch.setattr(other.groups, "_compute", compute_later)
    one, two = Client(other, "one", "orders"), Client(at, "two", "orders")
    joining = []
    for item in (one, two):
        joining.append(clock.spawn(item.join))
        clock.run_until_idle()
    assert len(claims) == 2, "one more when it listens"
    may_go_on.set()
    gevent.joinall(joining, raise_error=True, timeout=SECONDS_MAX)
    assert two.epoch == 2


def test_a_heartbeat_with_nothing_to_assign_reads_its_member_once_and_claims_nothing(
    at: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Client(at, "one", "orders"), Client(at, "two", "orders")
    one.join()
    two.join()
    two.beat()
    calls = counted(at, monkeypatch, "read", "claim")
    assert two.beat().epoch == 2
    assert calls == ["read"]


def test_a_topic_that_is_matched_while_another_member_joins_is_not_forgotten(
    at: Consumers, other: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Client(at, "one", regex="ord.*"), Client(other, "two", "orders")
    one.join()
    settle(one)
    at.create("orders2", 1)
    first(monkeypatch, ConsumerStore, "bump", two.join)
    settle(one, two)
    assert one.has()["orders2"] == [0]
