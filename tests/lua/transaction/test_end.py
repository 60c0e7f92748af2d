"""lua/transaction/end.lua, complete.lua and expire.lua: how transactions end, by their producers or with time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.support import refused, unchanged
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


By = tuple[bytes, int]
BY_PRODUCERS: dict[str, Callable[[Transaction, By], object]] = {
    "add": lambda transaction, by: transaction.add(by, PARTITION),
    "verify": lambda transaction, by: transaction.add(by, PARTITION, mode="verify"),
    "end": lambda transaction, by: transaction.end(by, "commit"),
    "end and bump": lambda transaction, by: transaction.end(by, "commit", bumps=True),
}


@pytest.mark.parametrize("ask", BY_PRODUCERS.values(), ids=BY_PRODUCERS)
def test_only_the_producer_of_the_present_epoch_may(
    transaction: Transaction, ask: Callable[[Transaction, By], object]
) -> None:
    with refused(transaction.client, "INVALID_PRODUCER_ID_MAPPING"):
        ask(transaction, (b"100", 0))
    old = transaction.begin()
    _, producer_id, epoch = transaction.init(*old)
    fenced = "PRODUCER_FENCED the producer has epoch 1 .*now"
    with refused(transaction.client, fenced):  # a beginning is not taken for an end
        ask(transaction, old)
    transaction.opened((producer_id, epoch))
    with refused(transaction.client, "INVALID_PRODUCER_ID_MAPPING"):
        ask(transaction, (b"8", epoch))
    for wrong in (old[1], epoch + 1):
        with refused(transaction.client, fenced):
            ask(transaction, (producer_id, wrong))


@RESULTS
def test_a_transaction_that_is_prepared_has_to_be_completed_before_anything_else(
    transaction: Transaction, how: str
) -> None:
    by = transaction.begin()
    transaction.opened(by)
    prepared = transaction.end(by, how)
    with unchanged(transaction.client):
        for mode in ("add", "verify"):
            assert transaction.add(by, OTHER, mode=mode) == prepared
        assert transaction.init() == transaction.expire() == prepared


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


@pytest.mark.parametrize("before", ["commit", "abort"])
def test_without_a_transaction_there_is_nothing_to_commit(transaction: Transaction, before: str) -> None:
    by = transaction.begin()
    nothing = "INVALID_TXN_STATE the transaction cannot be ended so in state Empty"
    for how, bumps in (("commit", False), ("abort", False), ("commit", True)):
        with refused(transaction.client, nothing):
            transaction.end(by, how, bumps=bumps)
    transaction.opened(by)
    then = transaction.ended(by, before, bumps=True)
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.end(then, "commit", bumps=True)


@pytest.mark.parametrize("before", [None, "commit", "abort", "last epoch"])
def test_with_an_epoch_for_each_an_abort_without_a_transaction_gives_the_next_epoch(
    transaction: Transaction, before: str | None
) -> None:
    by = transaction.begin()
    then = [b"DONE", by[0], 1]
    if before == "last epoch":
        transaction.set(epoch=LAST_EPOCH)
        by, then = (by[0], LAST_EPOCH), [b"DONE", b"101", 0]
    elif before is not None:
        transaction.opened(by)
        by = transaction.ended(by, before, bumps=True)
        then = [b"DONE", by[0], 2]
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


LONG_MS = 3_600_000


def test_nothing_is_due_about_an_id_that_does_not_exist(transaction: Transaction) -> None:
    with unchanged(transaction.client):
        assert transaction.expire() == -2


def test_an_id_expires_that_has_had_no_transaction_for_long(transaction: Transaction) -> None:
    by = transaction.begin()
    transaction.opened(by)
    transaction.ended(by, "commit")
    changed = int(transaction.stored()["changed"])
    with unchanged(transaction.client):
        assert transaction.expire(LONG_MS) == changed + LONG_MS
    transaction.set(changed=changed - LONG_MS)
    assert transaction.expire(LONG_MS) == -2
    assert transaction.client.dbsize() == 0


def test_an_id_with_an_open_transaction_does_not_expire(transaction: Transaction) -> None:
    by = transaction.begin()
    transaction.opened(by)
    transaction.set(changed=1)
    assert transaction.expire() > transaction.now_ms()
    assert transaction.state() == "Ongoing"
