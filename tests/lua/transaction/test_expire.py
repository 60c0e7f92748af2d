"""lua/transaction/expire.lua: transactions past their timeout, and how their producers go on."""

from __future__ import annotations

import pytest

from tests.lua.support import refused, unchanged
from tests.lua.transaction.support import LAST_EPOCH, PARTITION, TIMEOUT_MS, Transaction


def test_a_transaction_is_aborted_past_its_timeout_and_its_producer_fenced(transaction: Transaction) -> None:
    by = transaction.begin()
    number = transaction.opened(by)
    with unchanged(transaction.client):
        assert transaction.expire() == int(transaction.stored()["started"]) + TIMEOUT_MS
    transaction.set(started=transaction.now_ms() - TIMEOUT_MS)
    prepared = transaction.expire()
    assert (prepared.by, prepared.number, prepared.commit) == ((by[0], 1), number, False)
    assert prepared.parts == {PARTITION[0].encode(): PARTITION[1].encode()}
    assert transaction.expire() == prepared
    for done in (False, True):
        if done:
            transaction.complete(number)
        with refused(transaction.client, "PRODUCER_FENCED"):
            transaction.end(by, "abort")
        with refused(transaction.client, "INVALID_TXN_STATE"):
            transaction.end(by, "commit", bumps=True)
        with refused(transaction.client, "PRODUCER_FENCED"):
            transaction.add(by, PARTITION)


@pytest.mark.parametrize("ends", [True, False], ids=["EndTxn", "InitProducerId"])
def test_a_producer_whose_transaction_timed_out_goes_on_with_its_next_epoch(
    transaction: Transaction, *, ends: bool
) -> None:
    by = transaction.begin()
    number = timed_out(transaction, by)
    transaction.complete(number)
    for _ in range(2):
        answer = transaction.end(by, "abort", bumps=True) if ends else transaction.init(*by)
        assert answer == [b"DONE", by[0], by[1] + 1]
    transaction.opened((by[0], by[1] + 1))


def test_a_producer_whose_transaction_timed_out_may_abort_while_its_markers_are_written(
    transaction: Transaction,
) -> None:
    by = transaction.begin()
    number = timed_out(transaction, by)
    prepared = transaction.end(by, "abort", bumps=True)
    assert (prepared.then, prepared.number) == ((by[0], by[1] + 1), number)


@pytest.mark.parametrize("done", [False, True], ids=["being completed", "complete"])
def test_a_timeout_in_the_last_epoch_of_a_producer_id_leads_to_another(
    transaction: Transaction, *, done: bool
) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH)
    by = (producer_id, LAST_EPOCH)
    number = timed_out(transaction, by)
    if done:
        transaction.complete(number)
        with unchanged(transaction.client), refused(transaction.client, "^INVALID_TXN_STATE "):
            transaction.end(by, "commit", bumps=True)
        _, *then = transaction.end(by, "abort", bumps=True)
    else:
        then = [*transaction.end(by, "abort", bumps=True).then]
        transaction.complete(number)
    assert then[0] != producer_id
    assert then[1] == 0
    assert transaction.end(by, "abort", bumps=True) == [b"DONE", *then]
    transaction.opened((then[0], then[1]))


def test_another_producer_fences_the_one_whose_transaction_timed_out(transaction: Transaction) -> None:
    by = transaction.begin()
    transaction.complete(timed_out(transaction, by))
    assert transaction.init() == [b"DONE", by[0], 2]
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.end(by, "abort", bumps=True)
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.init(*by)


def timed_out(transaction: Transaction, by: tuple[bytes, int]) -> int:
    """Let a transaction of the producer time out; return its number, for it is to be completed."""
    number = transaction.opened(by)
    transaction.set(started=transaction.now_ms() - TIMEOUT_MS)
    assert transaction.expire().number == number
    return number


def test_a_transaction_that_began_in_the_future_begins_now(transaction: Transaction) -> None:
    number = transaction.opened(transaction.begin())
    transaction.set(started=transaction.now_ms() + 3_600_000)
    due_ms = transaction.expire()
    assert 0 < due_ms - transaction.now_ms() <= TIMEOUT_MS
    assert int(transaction.stored()["started"]) + TIMEOUT_MS == due_ms
    assert int(transaction.stored()["number"]) == number
