"""Members that wait while their worker's subscription is lost, at each step of a join and of a sync.

Announcements in the meantime are lost. If the connection is cut, the worker finds out when it listens again, and no
time passes until then; if it is silent, the worker polls after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from tests.groups.support import join_request, refused, sync_request
from tests.groups.worker import SECONDS_MAX, Worker, every_topic
from tests.support.domain import domain
from tests.support.proxy import Proxy, proxy
from tests.support.virtual_clock import VirtualClock

# One connection is cut, that to the only Redis; tests/redis/test_sharded_pubsub.py loses those to nodes.
pytestmark = pytest.mark.embedded

STEPS = ("before the script", "after the script", "parked")


@pytest.fixture
def events(redis_url: str) -> Iterator[Proxy]:
    """Give the way that announcements take to the worker, and nothing else."""
    with proxy(redis_url) as running:
        yield running


@pytest.fixture
def worker(redis_url: str, raw_redis: Any, events: Proxy, clock: VirtualClock) -> Iterator[Worker]:
    """Give the worker that its members wait at."""
    with domain(redis_url) as made:
        yield Worker(made, raw_redis, clock, events.url)


@pytest.fixture
def other(redis_url: str, raw_redis: Any, clock: VirtualClock) -> Iterator[Worker]:
    """Give another one, which loses nothing."""
    with domain(redis_url) as made:
        yield Worker(made, raw_redis, clock)


class Loss:
    """Loses the subscription at a step of a request, then lets the transition happen."""

    def __init__(
        self, worker: Worker, events: Proxy, patch: pytest.MonkeyPatch, step: str, *, cut: bool
    ) -> None:
        self.worker, self.events, self.patch = worker, events, patch
        self.step, self.cut = step, cut

    def lose(self) -> None:
        """Cut the connection, and let no other come to its end; or leave it, silent."""
        self.events.silence()
        if self.cut:
            self.events.cut()

    def around(self, name: str, transition: Callable[[], object]) -> None:
        """Put the loss around a script, at its step; what happens while the member waits is done there too."""
        script = getattr(self.worker.group.store, name)

        def run(*request: Any) -> Any:
            if self.step == "before the script":
                self.lose()
            outcome = script(*request)
            if self.step == "after the script":
                self.lose()
            if self.step != "parked":
                transition()
                self.begin_again()
            return outcome

        self.patch.setattr(self.worker.group.store, name, run)

    def run(
        self, script: str, transition: Callable[[], object], request: Callable[..., Any], *args: Any
    ) -> gevent.Greenlet[..., Any]:
        """Send the request with the loss at its step, and let a second pass if the worker is to poll."""
        clock = self.worker.clock
        self.around(script, transition)
        greenlet = clock.spawn(request, *args)
        clock.run_until_idle()
        if self.step == "parked":
            self.lose()
            transition()
            self.begin_again()
        if not self.cut:
            clock.advance(1)
        return greenlet

    def begin_again(self) -> None:
        """Let the connection that was cut be made again, after the announcement."""
        if self.cut:
            self.events.speak()


@pytest.fixture(params=["cut", "silent"])
def losing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, worker: Worker, events: Proxy
) -> Callable[[str], Loss]:
    """Give what makes a loss at a step."""
    return lambda step: Loss(worker, events, monkeypatch, step, cut=request.param == "cut")


def rebalancing(other: Worker) -> None:
    """Have a rebalance wait for `a` already: who joins it announces nothing, which could wake him by itself."""
    other.group.stable("a")
    other.group.waits(new="b")


def joining(worker: Worker, loss: Loss, transition: Callable[[], object]) -> gevent.Greenlet[..., Any]:
    """Join with the loss, while `transition` ends what the member waits for."""
    return loss.run("join", transition, worker.classic.join, join_request("billing"), every_topic)


@pytest.mark.parametrize("step", STEPS)
def test_a_join_that_waits_hears_of_the_last_one(
    worker: Worker, other: Worker, losing: Callable[[str], Loss], step: str
) -> None:
    rebalancing(other)
    waiting = joining(worker, losing(step), lambda: other.group.joined("a"))
    assert waiting.get(timeout=SECONDS_MAX).generation == 2


@pytest.mark.parametrize("step", STEPS)
def test_a_join_that_waits_hears_that_another_has_left(
    worker: Worker, other: Worker, losing: Callable[[str], Loss], step: str
) -> None:
    rebalancing(other)
    waiting = joining(worker, losing(step), lambda: other.group.leave(("a", "")))
    assert waiting.get(timeout=SECONDS_MAX).generation == 2
    assert "a" not in other.group.ids()


def syncing(worker: Worker, loss: Loss, transition: Callable[[], object]) -> gevent.Greenlet[..., Any]:
    """Sync as the follower `b` of `a`, in the same way."""
    worker.group.joined(new="a")
    worker.group.waits(new="b")
    generation = worker.group.joined("a").generation
    return loss.run("sync", transition, worker.classic.sync, sync_request("billing", "b", generation, {}))


@pytest.mark.parametrize("step", STEPS)
def test_a_sync_that_waits_hears_of_its_part(
    worker: Worker, other: Worker, losing: Callable[[str], Loss], step: str
) -> None:
    waiting = syncing(worker, losing(step), lambda: other.group.part("a", 2, a=b"1", b=b"2"))
    assert waiting.get(timeout=SECONDS_MAX).assignment == b"2"


@pytest.mark.parametrize(
    "transition",
    [lambda other: other.group.waits(new="c"), lambda other: other.group.leave(("a", ""))],
    ids=["joins", "leaves"],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_sync_that_waits_hears_that_it_is_to_join_again(
    worker: Worker,
    other: Worker,
    losing: Callable[[str], Loss],
    step: str,
    transition: Callable[[Worker], object],
) -> None:
    waiting = syncing(worker, losing(step), lambda: transition(other))
    refused("REBALANCE_IN_PROGRESS", lambda: waiting.get(timeout=SECONDS_MAX))


def test_a_subscription_that_is_cut_before_a_member_comes_is_made_again_first(
    worker: Worker, other: Worker, events: Proxy
) -> None:
    other.group.stable("a")
    first = worker.joining()
    other.group.joined("a")
    member = first.get(timeout=SECONDS_MAX).member_id
    events.cut()
    again = worker.joining(member, protocols=(("range", b"others"),))
    assert other.group.joined("a").generation == 3
    assert again.get(timeout=SECONDS_MAX).generation == 3
