"""The append scripts with batches of transactions, and with the markers that end them, in both formats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import (
    ABORTED,
    OPEN,
    STATE,
    Log,
    now_ms,
    refused,
    run,
    unchanged,
)
from tests.support.partition_state import set_producer

EARLIER_NUMBER, THIS_NUMBER, LATER_NUMBER = range(1700000000000, 1700000000003)
EARLIER, NUMBER, LATER = f"t{EARLIER_NUMBER}", f"t{THIS_NUMBER}", f"t{LATER_NUMBER}"
COMMIT, ABORT = f"c{THIS_NUMBER}", f"a{THIS_NUMBER}"
NONE = -1


def row(log: Log) -> tuple[int, int, int, list[int]]:
    """Return a producer's epoch, the number and first offset of its transaction, and its batches, oldest first."""
    producer = log.producers[7]
    bases = [batch.base_offset for batch in reversed(producer.batches)]
    return producer.epoch, producer.transaction, producer.first_offset, bases


def opened(log: Log) -> dict[str, int]:
    """Return the first offset of each open transaction; fails if the state says something else."""
    result = {name.decode(): int(score) for name, score in log.client.zrange(OPEN, 0, -1, withscores=True)}
    expected = str(min(result.values())) if result else None
    assert log.state().get("open") == expected
    offsets = log.offsets()
    return {name: min(offset for offset in offsets if offset >= begun) for name, begun in result.items()}


def aborted(log: Log) -> list[tuple[str, int]]:
    """Return the aborted transactions; fails if the state says something else."""
    rows = log.client.zrange(ABORTED, 0, -1, withscores=True)
    result = [(name.decode().rpartition(":")[0], int(score)) for name, score in rows]
    assert log.state().get("aborted") == (str(result[-1][1]) if result else None)
    return result


def marker(log: Log, transaction: str, *, producer: int = 7, epoch: int = 0) -> Any:
    """Append a marker; returns its outcome and its offset."""
    return log.append("marker", producer=producer, epoch=epoch, sequence=-1, transaction=transaction)[:2]


def test_a_transaction_that_is_not_verified_is_not_opened(log: Log) -> None:
    log.appended("before", producer=7)
    with unchanged(log.client):
        for sequence in (1, 5):  # one that is out of sequence too
            assert log.append("a", producer=7, sequence=sequence, transaction="t0")[:2] == (b"VERIFY", 0)
        assert log.append("a", producer=8, epoch=3, sequence=5, transaction="t0")[0] == b"VERIFY"


def test_a_transaction_is_opened_by_its_number_and_goes_on_without_it(log: Log) -> None:
    first = log.appended("a", producer=7, transaction=NUMBER)
    assert opened(log) == {"7": first}
    log.appended("b", producer=7, sequence=1, transaction="t0")
    last = log.appended("c", producer=7, sequence=2, transaction=NUMBER)
    assert opened(log) == {"7": first}
    assert row(log)[:3] == (0, THIS_NUMBER, first)
    assert log.producers[7].batches[0] == (1, last)
    assert log.append("b", producer=7, sequence=1, transaction="t0")[0] == b"DUPLICATE"
    with refused(log.client, r"^OUT_OF_ORDER "):
        log.append("e", producer=7, sequence=4, transaction="t0")
    assert log.values() == ["a", "b", "c"]
    assert aborted(log) == []


@pytest.mark.parametrize(
    ("transaction", "verdict"),
    [(EARLIER, "TRANSACTION_OPEN"), (LATER, "TRANSACTION_OPEN"), ("0", "TRANSACTION_NOT_SENT")],
)
def test_while_a_transaction_is_open_nothing_else_is_written(
    log: Log, transaction: str, verdict: str
) -> None:
    log.appended("a", producer=7, epoch=1, transaction=NUMBER)
    with refused(log.client, f"^{verdict} "):
        log.append("b", producer=7, epoch=1, sequence=1, transaction=transaction)
    with refused(log.client, r"^INVALID_PRODUCER_EPOCH "):
        log.append("b", producer=7, epoch=0, sequence=1, transaction=transaction)
    log.appended("another producer's", producer=8, transaction=transaction)


def test_a_batch_of_an_open_transaction_that_comes_again_without_it_is_written_once(log: Log) -> None:
    first = log.appended("a", producer=7, transaction=NUMBER)
    assert log.append("a", producer=7)[:2] == (b"DUPLICATE", first)
    with refused(log.client, r"^OUT_OF_ORDER "):
        log.append("c", producer=7, sequence=2)


def test_a_commit_ends_a_transaction_and_keeps_what_its_producer_has_written(log: Log) -> None:
    first = log.appended("a", producer=7, transaction=NUMBER)
    outcome, at = marker(log, COMMIT)
    assert (outcome, at) == (b"APPENDED", first + 1) or at > first
    assert log.next() == at + 1
    assert (opened(log), aborted(log)) == ({}, [])
    assert row(log) == (0, THIS_NUMBER, NONE, [first])
    assert log.append("a", producer=7, transaction="t0")[:2] == (b"DUPLICATE", first)
    assert log.append("b", producer=7, sequence=1, transaction="t0")[0] == b"VERIFY"
    second = log.appended("b", producer=7, sequence=1, transaction=LATER)
    assert opened(log) == {"7": second}
    assert row(log) == (0, LATER_NUMBER, second, [first, second])


def test_an_abort_is_noted_with_the_offsets_between_which_it_lies(log: Log) -> None:
    first = log.appended("a", producer=7, transaction=NUMBER)
    log.appended("another producer's", producer=8)
    _, at = marker(log, ABORT)
    assert aborted(log) == [(f"7:{first}", at)]
    assert opened(log) == {}
    second = log.appended("b", producer=7, sequence=1, transaction=LATER)
    _, then = marker(log, f"a{LATER[1:]}")
    assert aborted(log) == [(f"7:{first}", at), (f"7:{second}", then)]


@pytest.mark.parametrize("ending", [COMMIT, ABORT])
def test_a_marker_that_comes_twice_or_late_changes_nothing(log: Log, ending: str) -> None:
    log.appended("a", producer=7, transaction=EARLIER)
    assert marker(log, f"c{EARLIER[1:]}")[0] == b"APPENDED"
    log.appended("b", producer=7, sequence=1, transaction=NUMBER)
    with unchanged(log.client):  # of a transaction before the open one
        assert marker(log, f"a{EARLIER[1:]}") == (b"DUPLICATE", 0)
    assert marker(log, ending)[0] == b"APPENDED"
    with unchanged(log.client):
        for late in (ending, COMMIT, ABORT, f"a{EARLIER[1:]}"):
            assert marker(log, late) == (b"DUPLICATE", 0)


def test_a_batch_that_comes_late_does_not_open_its_transaction_again(log: Log) -> None:
    log.appended("a", producer=7, transaction=NUMBER)
    marker(log, ABORT)
    for late in (NUMBER, EARLIER):
        with refused(log.client, "^TRANSACTION_ENDED"):
            log.append("b", producer=7, sequence=1, transaction=late)
    log.appended("b", producer=7, sequence=1, transaction=LATER)


def test_a_marker_of_another_epoch_begins_that(log: Log) -> None:
    log.appended("a", producer=7, epoch=2, transaction=NUMBER)
    assert marker(log, COMMIT, epoch=3)[0] == b"APPENDED"
    assert row(log) == (3, THIS_NUMBER, NONE, [])
    with unchanged(log.client):
        assert marker(log, COMMIT, epoch=3) == (b"DUPLICATE", 0)
    for ending in (COMMIT, ABORT):
        with refused(log.client, r"^INVALID_PRODUCER_EPOCH "):
            marker(log, ending, epoch=2)
    with refused(log.client, r"^INVALID_PRODUCER_EPOCH "):
        log.append("b", producer=7, epoch=2, sequence=1, transaction=LATER)
    for sequence in (1, 2**31 - 1):
        with refused(log.client, r"^OUT_OF_ORDER "):
            log.append("b", producer=7, epoch=3, sequence=sequence, transaction=LATER)
    log.appended("b", producer=7, epoch=3, sequence=0, transaction=LATER)
    assert list(opened(log)) == ["7"]


@pytest.mark.parametrize("ending", [COMMIT, ABORT])
def test_a_marker_without_records_keeps_what_comes_late_out(log: Log, ending: str) -> None:
    assert marker(log, ending, epoch=1)[0] == b"APPENDED"
    assert row(log) == (1, THIS_NUMBER, NONE, [])
    assert (opened(log), aborted(log)) == ({}, [])
    with refused(log.client, "^TRANSACTION_ENDED "):
        log.append("a", producer=7, epoch=1, transaction=NUMBER)
    with refused(log.client, r"^INVALID_PRODUCER_EPOCH "):
        log.append("a", producer=7, epoch=0, transaction=NUMBER)
    log.appended("a", producer=7, epoch=1, transaction=LATER)


def test_a_marker_of_a_negative_epoch_keeps_no_other_epoch_out(log: Log) -> None:
    """WriteTxnMarkers takes any int16 for the epoch of a producer."""
    assert marker(log, COMMIT, epoch=-1)[0] == b"APPENDED"
    assert row(log) == (-1, THIS_NUMBER, NONE, [])
    log.appended("a", producer=7, epoch=0, transaction=LATER)


@pytest.mark.parametrize("ending", ["c0", "a0"])
def test_a_marker_without_a_number_ends_what_is_open(log: Log, ending: str) -> None:
    with unchanged(log.client):
        assert marker(log, ending) == (b"DUPLICATE", 0)
    first = log.appended("a", producer=7, transaction=NUMBER)
    outcome, at = marker(log, ending)
    assert outcome == b"APPENDED"
    assert row(log)[:3] == (0, THIS_NUMBER, NONE)
    assert aborted(log) == ([(f"7:{first}", at)] if ending == "a0" else [])
    assert opened(log) == {}
    with unchanged(log.client):
        assert marker(log, ending) == (b"DUPLICATE", 0)


@pytest.mark.parametrize("ending", ["c-1", "a-1"])
def test_a_marker_that_needs_a_later_epoch_ends_what_an_earlier_one_has_open(log: Log, ending: str) -> None:
    with unchanged(log.client):
        assert marker(log, ending) == (b"DUPLICATE", 0)
    first = log.appended("a", producer=7, epoch=3, transaction=NUMBER)
    for epoch, verdict in ((2, "INVALID_PRODUCER_EPOCH"), (3, "OPEN_BY_EPOCH")):
        with unchanged(log.client), refused(log.client, f"^{verdict} "):
            marker(log, ending, epoch=epoch)
    outcome, at = marker(log, ending, epoch=4)
    assert outcome == b"APPENDED"
    assert row(log)[:3] == (4, THIS_NUMBER, NONE)
    assert aborted(log) == ([(f"7:{first}", at)] if ending == "a-1" else [])
    assert opened(log) == {}
    with unchanged(log.client):  # sent again
        assert marker(log, ending, epoch=4) == (b"DUPLICATE", 0)


def test_the_state_has_the_first_offset_of_all_that_is_open(log: Log) -> None:
    bases = {number: log.appended("a", producer=number, transaction=NUMBER) for number in (8, 7, 9)}
    assert opened(log) == {str(number): base for number, base in bases.items()}
    marker(log, COMMIT, producer=7)
    assert opened(log) == {"8": bases[8], "9": bases[9]}
    marker(log, ABORT, producer=8)
    assert opened(log) == {"9": bases[9]}
    marker(log, COMMIT, producer=9)
    assert opened(log) == {}
    assert log.client.exists(OPEN) == 0


def test_of_a_producer_with_another_epoch_nothing_joins_the_open_transaction(log: Log) -> None:
    log.appended("a", producer=7, epoch=1, transaction=NUMBER)
    with unchanged(log.client):
        assert log.append("b", producer=7, epoch=2, transaction="t0")[0] == b"VERIFY"
    with refused(log.client, "^TRANSACTION_OPEN"):
        log.append("b", producer=7, epoch=2, transaction=LATER)


def test_records_without_a_transaction_keep_the_number_of_the_last_one(log: Log) -> None:
    log.appended("a", producer=7, transaction=NUMBER)
    marker(log, COMMIT)
    log.client.set(OPEN, "not looked at")  # and no key of the call
    log.appended("b", producer=7, sequence=1)
    assert row(log)[:3] == (0, THIS_NUMBER, NONE)
    assert len(row(log)[3]) == 2
    log.client.delete(OPEN)
    with refused(log.client, "^TRANSACTION_ENDED "):
        log.append("c", producer=7, sequence=2, transaction=NUMBER)


@pytest.mark.parametrize(("key", "verdict"), [(OPEN, "MALFORMED_OPEN"), (ABORTED, "MALFORMED_ABORTED")])
def test_a_set_of_transactions_of_another_type_is_named_before_anything_is_written(
    log: Log, key: str, verdict: str
) -> None:
    log.appended("a", producer=7, transaction=NUMBER)
    log.client.delete(key)
    log.client.set(key, "a string")
    for ending in (COMMIT, ABORT):
        with refused(log.client, f"^{verdict} "):
            marker(log, ending)
    with refused(log.client, f"^{verdict} "):
        log.append("b", producer=8, transaction=NUMBER)
    log.appended("b", producer=7, sequence=1, transaction="t0")
    log.appended("c", producer=9)


def test_a_transaction_begins_after_the_external_entries_that_it_meets(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("a")
    for sequence in (1, 2):
        log.external(f"{(log.next() >> log.bits) + 1}-{sequence}", "external")
    first = log.appended("b", producer=7, transaction=NUMBER)
    assert opened(log) == {"7": first}
    assert log.offsets()[-1] == first
    log.external(f"{(log.next() >> log.bits) + 1}-5000", "no offset")
    with unchanged(raw_redis):
        assert marker(log, ABORT)[0] == b"AGAIN"
    log.settle()
    _, at = marker(log, ABORT)
    assert aborted(log) == [(f"7:{first}", at)]


def test_offsets_beyond_exact_text_are_kept_exactly(log: Log) -> None:
    log.change(next_offset=2**53 - 3)
    first = log.appended("a", producer=2**62, transaction=NUMBER)
    assert first == 2**53 - 3
    _, at = marker(log, ABORT, producer=2**62)
    assert aborted(log) == [(f"{2**62}:{first}", 2**53 - 2)] == [(f"{2**62}:{first}", at)]


def test_an_open_transaction_keeps_its_producer_from_being_forgotten(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("a", producer=7, transaction=NUMBER)
    log.appended("a", producer=8, transaction=NUMBER)
    marker(log, COMMIT, producer=8, epoch=1)
    log.appended("a", producer=9)
    for producer, kept in log.producers.items():
        set_producer(raw_redis, STATE, producer, kept._replace(last_ms=1))
    step = ["0", 100, now_ms(raw_redis), 1000]
    assert run(raw_redis, "producer/expire", (STATE,), step) == [b"0", 2]
    assert row(log)[:2] == (0, THIS_NUMBER)
    marker(log, COMMIT)
    set_producer(raw_redis, STATE, 7, log.producers[7]._replace(last_ms=1))
    assert run(raw_redis, "producer/expire", (STATE,), step) == [b"0", 1]


def test_a_transaction_begins_where_the_log_ended(log: Log) -> None:
    """In format record the first record may lie later: a reader of what is stable is to come to that end."""
    end = log.appended("before") + 1
    before = log.client.time()
    while log.client.time()[0] == before[0] and log.client.time()[1] // 1000 == before[1] // 1000:
        pass
    first = log.appended("a", producer=7, transaction=NUMBER)
    log.append_all(log.batch("b"), log.batch("c", producer=8, transaction=NUMBER))
    assert log.state()["open"] == str(end)
    assert first >= end
    marker(log, COMMIT)
    assert opened(log) == {"8": log.offsets()[-2]}


def test_an_aborted_transaction_says_up_to_where_no_later_one_matters(log: Log) -> None:
    def stable() -> list[int]:
        return [int(name.rpartition(b":")[2]) for name in log.client.zrange(ABORTED, 0, -1)]

    log.appended("a", producer=7, transaction=NUMBER)
    log.appended("b", producer=8, transaction=NUMBER)
    log.appended("c", producer=9, transaction=NUMBER)
    marker(log, ABORT, producer=8)
    assert stable() == [int(log.state()["open"])]
    marker(log, ABORT, producer=7)
    assert stable()[1:] == [int(log.state()["open"])]
    marker(log, ABORT, producer=9)
    assert stable()[2:] == [log.next()]
    offsets = [log.appended("d", producer=item, transaction=LATER) for item in (10, 11, 12)]
    ends = [log.batch("m", producer=item, sequence=-1, transaction="a0") for item in (12, 10, 11)]
    log.append_all(*ends)
    assert stable()[3:] == [offsets[0], offsets[1], log.next()]
