"""lua/transaction/expire.lua: timeouts, and transactional ids that nobody uses any more."""

from __future__ import annotations

from tests.lua.support import refused, unchanged
from tests.lua.transaction.support import PARTITION, TIMEOUT_MS, Transaction

LONG_MS = 3_600_000


def test_nothing_is_due_about_an_id_that_does_not_exist(transaction: Transaction) -> None:
    with unchanged(transaction.client):
        assert transaction.expire() == -2


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
    transaction.complete(number)
    for bumps in (False, True):
        with refused(transaction.client, "PRODUCER_FENCED"):
            transaction.end(by, "abort", bumps=bumps)
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.init(*by)
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.add(by, PARTITION)
    assert transaction.init() == [b"DONE", by[0], 2]


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
