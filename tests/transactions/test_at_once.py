"""Requests about one transaction that come at once, to several processes: they agree on how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import gevent
import pytest

from korvet.errors import KafkaError
from tests.transactions.support import PARTITIONS, Found, Process, committed

ROUNDS = 25
ERRORS = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"}


@pytest.mark.parametrize("bumps", [False, True])
def test_all_processes_end_a_transaction_in_the_same_way(
    worker: Process, other: Process, stored: Found, *, bumps: bool
) -> None:
    chosen = random.Random(bumps)
    seen, offset = set(), None
    for number in range(ROUNDS):
        by = worker.open(number)
        if chosen.random() < 0.3:
            stored.set(started=1)  # its timeout is over
        acts: list[Callable[[], object]] = [
            partial(process.end, by, commit=commit, bumps_epoch=bumps)
            for process in (worker, other)
            for commit in (True, False)
        ]
        acts += [worker.init, other.keep, partial(worker.produce, by, verify_only=True, sequence=1)]
        chosen.shuffle(acts)
        done = [gevent.spawn(_outcome, act) for act in acts]
        gevent.joinall(done, timeout=60, raise_error=True)
        other.keep()
        ends = {stored.markers(index)[number] for index in range(PARTITIONS)}
        assert len(ends) == 1
        assert [len(stored.markers(index)) for index in range(PARTITIONS)] == [number + 1] * PARTITIONS
        assert stored.open_partitions() == []
        seen |= ends
        if ends == {"commit"}:
            offset = number
        assert committed(worker) == offset
    assert seen == {"commit", "abort"}


def _outcome(act: Callable[[], object]) -> None:
    """Do it; every error is one of Kafka's."""
    try:
        act()
    except KafkaError as error:
        if error.code.name not in ERRORS:
            raise
