"""lua/transaction/end.lua and complete.lua: how transactions end, and what an end that comes again gets."""

from __future__ import annotations

import pytest

from tests.lua.support import refused
from tests.lua.transaction.support import GROUP, LAST_EPOCH, OTHER, PARTITION, Transaction

RESULTS = pytest.mark.parametrize("how", ["commit", "abort"])
PROTOCOLS = pytest.mark.parametrize("bumps", [False, True])
OPPOSITE = {"commit": "abort", "abort": "commit"}


@RESULTS
@PROTOCOLS
def test_an_end_is_decided_first_and_then_complete(
    transaction: Transaction, how: str, *, bumps: bool
) -> None:
    by = transaction.begin()
    number = transaction.opened(by, PARTITION, OTHER, GROUP)
    prepared = transaction.end(by, how, bumps=bumps)
    assert transaction.state() == f"Prepare{how.title()}"
    assert prepared.then == prepared.by == (by[0], 1 if bumps else 0)
    assert (prepared.number, prepared.commit) == (number, how == "commit")
    assert prepared.parts == {name.encode(): value.encode() for name, value in (PARTITION, OTHER, GROUP)}
    assert transaction.complete(number) == 1
    assert transaction.state() == f"Complete{how.title()}"
    assert not {PARTITION[0], OTHER[0], GROUP[0]} & transaction.stored().keys()


@RESULTS
@PROTOCOLS
def test_an_end_that_comes_again_gets_the_same_answer(
    transaction: Transaction, how: str, *, bumps: bool
) -> None:
    by = transaction.begin()
    transaction.opened(by)
    prepared = transaction.end(by, how, bumps=bumps)
    assert transaction.end(by, how, bumps=bumps) == prepared
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(by, OPPOSITE[how], bumps=bumps)
    transaction.complete(prepared.number)
    assert transaction.end(by, how, bumps=bumps) == [b"DONE", *prepared.then]
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(by, OPPOSITE[how], bumps=bumps)


def test_a_completion_that_comes_late_completes_nothing(transaction: Transaction) -> None:
    by = transaction.begin()
    first = transaction.opened(by)
    transaction.ended(by, "commit")
    assert transaction.complete(first) == 0
    second = transaction.opened(by, OTHER)
    assert transaction.complete(first) == transaction.complete(second) == 0
    prepared = transaction.end(by, "abort")
    assert transaction.complete(first) == 0
    assert transaction.end(by, "abort") == prepared
    transaction.client.flushall()
    assert transaction.complete(first) == 0


@PROTOCOLS
def test_only_the_producer_of_the_present_epoch_may_end(transaction: Transaction, *, bumps: bool) -> None:
    with refused(transaction.client, "INVALID_PRODUCER_ID_MAPPING"):
        transaction.end((b"100", 0), "commit", bumps=bumps)
    old = transaction.begin()
    _, producer_id, epoch = transaction.init()
    transaction.opened((producer_id, epoch))
    with refused(transaction.client, "INVALID_PRODUCER_ID_MAPPING"):
        transaction.end((b"8", epoch), "commit", bumps=bumps)
    for wrong in (old[1], epoch + 1):
        with refused(transaction.client, "PRODUCER_FENCED the producer has epoch 1 of id 101 now"):
            transaction.end((producer_id, wrong), "commit", bumps=bumps)


@RESULTS
def test_without_a_transaction_there_is_nothing_to_end(transaction: Transaction, how: str) -> None:
    by = transaction.begin()
    with refused(transaction.client, "INVALID_TXN_STATE the transaction cannot be ended so in state Empty"):
        transaction.end(by, how)


@pytest.mark.parametrize("before", ["commit", "abort"])
def test_with_an_epoch_for_each_a_commit_without_a_transaction_is_refused(
    transaction: Transaction, before: str
) -> None:
    by = transaction.begin()
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(by, "commit", bumps=True)
    transaction.opened(by)
    then = transaction.ended(by, before, bumps=True)
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(then, "commit", bumps=True)


@pytest.mark.parametrize("before", [None, "commit", "abort"])
def test_with_an_epoch_for_each_an_abort_without_a_transaction_gives_the_next_epoch(
    transaction: Transaction, before: str | None
) -> None:
    by = transaction.begin()
    if before is not None:
        transaction.opened(by)
        by = transaction.ended(by, before, bumps=True)
    then = [b"DONE", by[0], by[1] + 1]
    assert transaction.end(by, "abort", bumps=True) == then
    assert transaction.state() == "CompleteAbort"
    assert transaction.end(by, "abort", bumps=True) == then, "sent again"


def test_an_epoch_before_the_last_one_is_fenced(transaction: Transaction) -> None:
    first = transaction.begin()
    transaction.opened(first)
    second = transaction.ended(first, "commit", bumps=True)
    transaction.opened(second)
    for how in OPPOSITE:
        with refused(transaction.client, "PRODUCER_FENCED"):
            transaction.end(first, how, bumps=True)
    transaction.ended(second, "commit", bumps=True)
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.end(first, "commit", bumps=True)


def test_a_beginning_is_not_taken_for_an_end(transaction: Transaction) -> None:
    """The epoch before is known after InitProducerId too."""
    by = transaction.begin()
    transaction.init(*by)
    for how in OPPOSITE:
        with refused(transaction.client, "PRODUCER_FENCED"):
            transaction.end(by, how, bumps=True)


@RESULTS
def test_the_end_of_the_last_epoch_gives_another_producer_id(transaction: Transaction, how: str) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH)
    by = (producer_id, LAST_EPOCH)
    number = transaction.opened(by)
    prepared = transaction.end(by, how, bumps=True)
    assert prepared.by == (producer_id, LAST_EPOCH + 1)
    assert prepared.then[0] != producer_id
    assert prepared.then[1] == 0
    assert transaction.end(by, how, bumps=True) == prepared
    transaction.complete(number)
    assert transaction.end(by, how, bumps=True) == [b"DONE", *prepared.then]
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(by, OPPOSITE[how], bumps=True)
    transaction.opened(prepared.then)
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.end(by, how, bumps=True)


def test_an_abort_without_a_transaction_with_the_last_epoch_gives_another_producer_id(
    transaction: Transaction,
) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH)
    done = transaction.end((producer_id, LAST_EPOCH), "abort", bumps=True)
    assert done[1] != producer_id
    assert done[2] == 0
    assert transaction.end((producer_id, LAST_EPOCH), "abort", bumps=True) == done
