"""lua/transaction/add.lua: what is in a transaction, and the number of each."""

from __future__ import annotations

from tests.lua.support import refused
from tests.lua.transaction.support import GROUP, OTHER, PARTITION, TIMEOUT_MS, Transaction


def test_the_first_partition_opens_a_transaction_and_has_the_keeper_look_at_its_timeout(
    transaction: Transaction,
) -> None:
    by = transaction.begin()
    before = transaction.now_ms()
    outcome, due, number = transaction.add(by, PARTITION, OTHER)
    assert outcome == b"ADDED"
    assert before + TIMEOUT_MS <= due <= transaction.now_ms() + TIMEOUT_MS
    assert before <= number <= transaction.now_ms()
    stored = transaction.stored()
    assert (stored["state"], stored["number"], stored["started"]) == ("Ongoing", str(number), str(number))
    assert stored | dict([PARTITION, OTHER]) == stored


def test_more_partitions_and_groups_join_the_same_transaction(transaction: Transaction) -> None:
    by = transaction.begin()
    number = transaction.opened(by)
    # The process that has opened it may have died before the keeper's list had the deadline.
    due = number + TIMEOUT_MS
    assert transaction.add(by, OTHER, GROUP) == [b"ADDED", due, number]
    assert transaction.add(by, PARTITION) == [b"ADDED", due, number]
    assert transaction.stored() | dict([PARTITION, OTHER, GROUP]) == transaction.stored()


def test_thousands_of_partitions_join_at_once(transaction: Transaction) -> None:
    by = transaction.begin()
    parts = [(f"p:korvet:orders:{index}", "id") for index in range(12_345)]
    number = transaction.opened(by, *parts)
    assert transaction.stored() | dict(parts) == transaction.stored()
    assert len(transaction.end(by, "commit").parts) == 12_345
    assert transaction.complete(number) == 1
    assert not dict(parts).keys() & transaction.stored().keys()


def test_each_transaction_has_a_greater_number_even_if_the_clock_goes_back(transaction: Transaction) -> None:
    by = transaction.begin()
    first = transaction.opened(by)
    transaction.ended(by, "abort")
    second = transaction.opened(by)
    assert second > first
    transaction.ended(by, "commit")
    ahead = transaction.now_ms() + 3_600_000
    transaction.set(number=ahead)
    assert transaction.opened(by) == ahead + 1


def test_what_is_verified_is_in_the_open_transaction(transaction: Transaction) -> None:
    by = transaction.begin()
    number = transaction.opened(by, PARTITION, GROUP)
    assert transaction.add(by, PARTITION, GROUP, mode="verify") == [b"ADDED", -1, number]
    # Another partition, and one of a topic that was created again.
    for wrong in (OTHER, (PARTITION[0], "id-2")):
        with refused(transaction.client, f"INVALID_TXN_STATE {wrong[0]} is not in the transaction"):
            transaction.add(by, PARTITION, wrong, mode="verify")
    transaction.ended(by, "commit")
    with refused(transaction.client, "INVALID_TXN_STATE"):
        transaction.add(by, PARTITION, mode="verify")
