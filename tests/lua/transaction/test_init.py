"""lua/transaction/init.lua: producer ids and epochs, who is fenced, and what is aborted first."""

from __future__ import annotations

import pytest

from tests.lua.support import refused, run, unchanged
from tests.lua.transaction.support import KEY, LAST_EPOCH, PARTITION, Transaction


def test_a_transactional_id_is_created_once_it_is_listed(transaction: Transaction) -> None:
    with unchanged(transaction.client):
        reply = run(transaction.client, "transaction/init", [KEY], [0, 60_000, -1, -1, 100])
        assert reply[0] == b"UNLISTED"
        late = [transaction.now_ms() - 10_001, 60_000, -1, -1, 100]
        assert run(transaction.client, "transaction/init", [KEY], late)[0] == b"UNLISTED"
    assert transaction.init() == [b"DONE", b"100", 0]
    stored = transaction.stored()
    assert (stored["state"], stored["last_epoch"], stored["timeout_ms"]) == ("Empty", "-1", "60000")


def test_a_producer_that_lost_its_transactional_id_begins_with_another_id(transaction: Transaction) -> None:
    assert transaction.init(7, 5) == [b"DONE", b"100", 0]


def test_each_beginning_has_another_epoch_and_its_own_timeout(transaction: Transaction) -> None:
    producer_id, _ = transaction.begin()
    assert transaction.init(timeout_ms=5) == [b"DONE", producer_id, 1]
    assert transaction.stored()["timeout_ms"] == "5"


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_producer_begins_after_a_transaction(transaction: Transaction, how: str) -> None:
    by = transaction.begin()
    transaction.opened(by)
    transaction.ended(by, how)
    assert transaction.init() == [b"DONE", by[0], 1]
    assert (transaction.state(), transaction.stored()["started"]) == ("Empty", "0")


def test_a_producer_that_names_its_epoch_goes_on_with_the_next_and_may_say_so_twice(
    transaction: Transaction,
) -> None:
    producer_id, _ = transaction.begin()
    assert transaction.init(producer_id, 0) == [b"DONE", producer_id, 1]
    assert transaction.init(producer_id, 0) == [b"DONE", producer_id, 1]
    assert transaction.init(producer_id, 1) == [b"DONE", producer_id, 2]


def test_a_producer_that_another_has_replaced_is_fenced(transaction: Transaction) -> None:
    producer_id, _ = transaction.begin()
    transaction.init()
    for identity in ((producer_id, 0), (producer_id, 2), (8, 1), (8, LAST_EPOCH)):
        with refused(transaction.client, "PRODUCER_FENCED the producer has epoch 1 of id 100 now"):
            transaction.init(*identity)


def test_an_open_transaction_is_aborted_before_and_fences_its_producer(transaction: Transaction) -> None:
    by = transaction.begin()
    number = transaction.opened(by)
    prepared = transaction.init()
    assert (prepared.by, prepared.number, prepared.commit) == ((by[0], 1), number, False)
    assert prepared.parts == {PARTITION[0].encode(): PARTITION[1].encode()}
    assert transaction.init() == prepared, "who comes meanwhile has to complete it too"
    assert transaction.complete(number) == 1
    assert transaction.init() == [b"DONE", by[0], 2]


def test_a_producer_that_names_its_epoch_and_has_left_a_transaction_open_is_not_fenced_by_itself(
    transaction: Transaction,
) -> None:
    by = transaction.begin()
    number = transaction.opened(by)
    assert transaction.init(*by).by == (by[0], 1)
    transaction.complete(number)
    assert transaction.init(*by) == [b"DONE", by[0], 1]


def test_a_producer_id_without_a_next_epoch_is_replaced(transaction: Transaction) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH - 1)
    assert transaction.init() == [b"DONE", producer_id, LAST_EPOCH]
    _, replaced, epoch = transaction.init()
    assert replaced != producer_id
    assert epoch == 0
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.init(producer_id, LAST_EPOCH)


def test_a_producer_that_names_the_last_epoch_gets_another_id_and_may_say_so_twice(
    transaction: Transaction,
) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH - 1)
    assert transaction.init(producer_id, LAST_EPOCH - 1) == [b"DONE", producer_id, LAST_EPOCH]
    assert transaction.init(producer_id, LAST_EPOCH - 1) == [b"DONE", producer_id, LAST_EPOCH]
    done = transaction.init(producer_id, LAST_EPOCH)
    assert done[1:] != [producer_id, LAST_EPOCH]
    assert transaction.init(producer_id, LAST_EPOCH) == done
    assert transaction.init(done[1], 0) == [b"DONE", done[1], 1]
    with refused(transaction.client, "PRODUCER_FENCED"):
        transaction.init(producer_id, LAST_EPOCH)


@pytest.mark.parametrize("names", [False, True])
def test_the_abort_of_the_last_epoch_has_one_more_to_fence_it_by(
    transaction: Transaction, *, names: bool
) -> None:
    producer_id, _ = transaction.begin()
    transaction.set(epoch=LAST_EPOCH)
    number = transaction.opened((producer_id, LAST_EPOCH))
    asked = (producer_id, LAST_EPOCH) if names else ()
    assert transaction.init(*asked).by == (producer_id, LAST_EPOCH + 1)
    transaction.complete(number)
    done = transaction.init(*asked)
    assert done[1] != producer_id
    assert done[2] == 0
