"""A process that is killed at any step of an end: another one completes the transaction, everywhere in the same way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from korvet.errors import KafkaError
from korvet.transactions.types import ProducerIdentity
from tests.transactions.support import PARTITIONS, Found, Process, committed, make_topic

STEPS_MAX = 50
OFFSET = 5

Finish = Callable[[Process, ProducerIdentity, bool, bool], object]
"""What comes after the death of the process: another one, the producer, whether it commits, whether that bumps."""


@pytest.fixture(autouse=True)
def _nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the list of transactional ids be written at no time: each request to Redis is one of the end."""
    monkeypatch.setattr("korvet.groups.deferred.DELAY_S", 3600)


def retry(other: Process, by: ProducerIdentity, commit: bool, bumps: bool) -> None:  # noqa: FBT001 - as Finish
    then = other.end(by, commit=commit, bumps_epoch=bumps)
    assert then == (by.producer_id, by.epoch + 1 if bumps else by.epoch)


def begin_again(other: Process, by: ProducerIdentity, _commit: bool, _bumps: bool) -> None:  # noqa: FBT001 - as Finish
    assert other.init().epoch > by.epoch


def keep(other: Process, _by: ProducerIdentity, _commit: bool, _bumps: bool) -> None:  # noqa: FBT001 - as Finish
    other.keep()


def deaths(worker: Process, act: Callable[[], object], *, served: bool) -> Iterator[int]:
    """Have `act` done by a process that is killed at its first request, at its second, and so on; yields after each."""
    for at in range(STEPS_MAX):
        worker.dying.at(at, served=served)
        with contextlib.suppress(KafkaError):
            act()
        worker.dying.lives()
        if not worker.dying.was_killed:
            assert at > 2
            return
        yield at
    raise AssertionError(f"not done after {STEPS_MAX} requests")


@pytest.mark.parametrize("finish", [retry, begin_again, keep])
@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("served", [False, True])
def test_what_is_decided_is_done_everywhere_and_once(
    worker: Process, other: Process, stored: Found, finish: Finish, *, served: bool, commit: bool, bumps: bool
) -> None:
    by = worker.open()
    seen = set()

    def end() -> None:
        worker.end(by, commit=commit, bumps_epoch=bumps)

    for _ in deaths(worker, end, served=served):
        before = stored.state()
        seen.add(before)
        if before == "Ongoing":
            stored.set(started=1)  # its timeout is over
        finish(other, by, commit, bumps)
        is_decided = before != "Ongoing" or finish is retry
        result = "commit" if commit and is_decided else "abort"
        assert [stored.markers(index) for index in range(PARTITIONS)] == [[result]] * PARTITIONS
        assert stored.open_partitions() == []
        assert committed(other) == (OFFSET if result == "commit" else None)
        assert other.offsets.unstable(["billing"]) == [set()]
        stored.raw.flushall()
        for process in (worker, other):
            process.topics.reload()
        make_topic(worker)
        other.topics.reload()
        by = worker.open()
    prepared = f"Prepare{'Commit' if commit else 'Abort'}"
    assert seen == {prepared, prepared.replace("Prepare", "Complete") if served else "Ongoing"}
