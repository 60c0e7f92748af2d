"""The budget for bytes of requests: what it holds back, and that somebody always gets on."""

from __future__ import annotations

import contextlib
from typing import Any

import gevent
import pytest
from gevent.event import Event

from korvet.config.settings import Settings
from korvet.handlers.context import Caller
from korvet.handlers.registry import Handler
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.server.net.budget import FETCH_BYTES_MIN, ByteBudget, Charge, OverBudgetError
from tests.support.dispatching import connected, dispatcher, opened_sockets
from tests.support.proxy import until
from tests.support.topic_client import produce_request
from tests.support.wire_client import request_frame

SOON, LATE = 0.05, 30.0
PRODUCE = request_frame(produce_request("topic"), 8)
CLUSTER = request_frame(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)


@pytest.mark.parametrize(("held", "wanted", "more"), [((80, 0), 50, 0), ((50, 50), 40, 40)])
def test_bytes_are_held_back_until_others_are_returned_and_the_first_may_finish(
    held: tuple[int, int], wanted: int, more: int
) -> None:
    budget = ByteBudget(100, LATE)
    first, second = Charge(budget), Charge(budget)
    first.add(held[0])
    second.add(held[1])
    waiting = gevent.spawn(second.add, wanted)
    first.add(more)
    gevent.sleep(0)
    assert not waiting.dead
    first.close()
    waiting.get(timeout=LATE)


def test_what_does_not_become_free_in_time_is_over_budget() -> None:
    budget = ByteBudget(100, SOON)
    first, second = Charge(budget), Charge(budget)
    first.add(80)
    with pytest.raises(OverBudgetError, match="100 bytes"):
        second.add(50)
    with contextlib.closing(second), contextlib.closing(first):
        pass
    Charge(budget).add(100)


def test_a_request_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(100, SOON)
    with contextlib.closing(Charge(budget)) as large:
        large.add(60)
        large.add(60)
        with pytest.raises(OverBudgetError), contextlib.closing(Charge(budget)) as other:
            other.add(1)
    Charge(budget).add(100)


def test_what_was_taken_is_returned_whatever_happens() -> None:
    budget = ByteBudget(100, SOON)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), contextlib.closing(Charge(budget)) as charge:
            charge.add(90)
            raise ZeroDivisionError
    Charge(budget).add(10)
    with pytest.raises(OverBudgetError):
        Charge(budget).add(91)


def test_a_greenlet_that_is_killed_while_it_waits_leaves_no_debt() -> None:
    budget = ByteBudget(100, LATE)

    def take() -> None:
        with contextlib.closing(Charge(budget)) as charge:
            charge.add(60)
            charge.add(60)

    first = Charge(budget)
    first.add(30)
    killed = gevent.spawn(take)
    gevent.sleep(0)
    killed.kill()
    first.close()
    Charge(budget).add(100)


class Decoding:
    """A produce request under way, which others may follow; it needs more memory than there is until `end` is set."""

    in_order = True
    ready = False

    def __init__(self, caller: Caller, begun: list[Decoding]) -> None:
        caller.reserve_memory(1000)
        self.end = Event()
        begun.append(self)

    def result(self) -> Message:
        self.end.wait(LATE)
        return ProduceResponse(responses=[])


def test_a_produce_request_is_decoded_only_while_something_is_free(redis: Redis) -> None:
    begun: list[Decoding] = []
    handlers = {
        0: Handler(
            ProduceRequest, object, lambda _, caller, __: Decoding(caller, begun), refuse, pipelined=True
        ),
        60: Handler(
            DescribeClusterRequest, object, lambda *_: DescribeClusterResponse(cluster_id=""), refuse
        ),
    }
    by = dispatcher(redis, handlers, [object()])
    with (
        opened_sockets(Settings(queued_max_request_bytes=500)) as sockets,
        connected(by, sockets) as (_, first),
        connected(by, sockets) as (_, second),
        connected(by, sockets) as (_, third),
    ):
        first.sendall(PRODUCE + PRODUCE)  # the second of them would wait for the first
        until(lambda: begun)
        second.sendall(PRODUCE)
        third.sendall(CLUSTER)
        assert third.recv(1), "what is no produce request is served"
        assert len(begun) == 1
        begun[0].end.set()
        until(lambda: len(begun) == 3)
        for request in begun:
            request.end.set()
        assert first.recv(1)
        assert second.recv(1)
        assert sockets.budgets.decoded.free == 500


def refuse(_request: Any, _caller: Caller, error: Exception) -> Message:
    raise error


def test_a_produce_request_that_waits_too_long_for_memory_ends_its_connection_and_holds_nothing(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[Decoding] = []
    handler = Handler(
        ProduceRequest, object, lambda _, caller, __: Decoding(caller, begun), refuse, pipelined=True
    )
    by = dispatcher(redis, {0: handler}, [object()])
    settings = Settings(queued_max_request_bytes=500, connection_receive_timeout_ms=50)
    with (
        opened_sockets(settings) as sockets,
        connected(by, sockets) as (_, first),
        connected(by, sockets) as (_, second),
    ):
        first.sendall(PRODUCE)
        until(lambda: begun)
        second.sendall(PRODUCE)
        assert second.recv(1) == b""
        begun[0].end.set()
        assert first.recv(1)
        assert sockets.budgets.decoded.free == 500
        assert not sockets.budgets.decoded.charges
    [line] = [vars(record)["korvet_fields"] for record in caplog.records]
    assert line["reason"] == "requests of more than 500 bytes are being received or served"


def test_what_is_decoded_and_needed_no_longer_is_free_again() -> None:
    budget = ByteBudget(100, LATE)
    first, second = Charge(budget), Charge(budget)
    first.reserve(500)
    waiting = gevent.spawn(second.add, 1)
    gevent.sleep(0)
    assert not waiting.dead
    first.reserve(-450)
    waiting.get(timeout=LATE)
    first.close()
    second.close()
    assert budget.free == 100


def test_a_fetch_may_take_a_part_of_what_is_free_and_always_something() -> None:
    budget = ByteBudget(1_000_000, LATE)
    first, second = Charge(budget), Charge(budget)
    assert first.room == 250_000
    first.reserve(600_000)
    assert second.room == 100_000
    first.reserve(400_000)
    second.reserve(second.room)
    assert second.room == FETCH_BYTES_MIN
    first.close()
    second.close()
    assert budget.free == 1_000_000
