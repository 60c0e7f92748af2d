"""loadtest/locust/readback.py: each kind of fault is found and named, and nothing else is one."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from loadtest.locust import ledger
from loadtest.locust.ledger import Key, Page, Written
from loadtest.locust.readback import DOUBLED, ELSEWHERE, LOST, OUT_OF_ORDER, UNKNOWN, Sequences

KEY, OTHER = Key("orders", "a"), Key("orders", "b")


def faults(numbers: list[int], sent: int, unsure: frozenset[int] = frozenset()) -> dict[str, int]:
    """Return what is wrong with a partition that holds these records of one key."""
    sequences = Sequences({KEY: Written(sent, unsure)})
    for number in numbers:
        sequences.record(KEY, 0, number)
    sequences.finish()
    return dict(sequences.faults)


def test_a_whole_sequence_has_no_fault() -> None:
    assert faults([0, 1, 2, 3], sent=4) == {}
    assert faults([], sent=0) == {}


def test_a_gap_is_a_record_lost() -> None:
    assert faults([0, 1, 3], sent=4) == {LOST: 1}


def test_the_last_records_can_be_lost_too_and_all_of_them() -> None:
    assert faults([0, 1], sent=4) == {LOST: 2}
    assert faults([], sent=3) == {LOST: 3}


def test_a_record_that_comes_again_is_doubled() -> None:
    assert faults([0, 1, 1, 2], sent=3) == {DOUBLED: 1}
    assert faults([0, 1, 2, 0], sent=3) == {DOUBLED: 1}


def test_a_swap_is_one_record_out_of_order_and_none_lost() -> None:
    assert faults([0, 2, 1, 3], sent=4) == {OUT_OF_ORDER: 1}
    assert faults([1, 0], sent=2) == {OUT_OF_ORDER: 1}


def test_a_record_that_comes_late_and_again_is_doubled_besides() -> None:
    assert faults([0, 2, 1, 1], sent=3) == {OUT_OF_ORDER: 1, DOUBLED: 1}


def test_an_unsure_record_may_be_there_or_not_and_late_but_not_twice() -> None:
    unsure = frozenset({1})
    assert faults([0, 2], 3, unsure) == {}
    assert faults([0, 1, 2], 3, unsure) == {}
    assert faults([0, 2, 1], 3, unsure) == {}
    assert faults([0, 1, 2, 1], 3, unsure) == {DOUBLED: 1}
    assert faults([0], 2, unsure) == {}
    assert faults([0, 1], 3, unsure) == {LOST: 1}


def test_a_record_that_nobody_has_sent_is_unknown() -> None:
    assert faults([0, 1, 2], sent=2) == {UNKNOWN: 1}
    sequences = Sequences({KEY: Written(0, frozenset())})
    sequences.record(OTHER, 0, 0)
    sequences.finish()
    assert sequences.faults == {UNKNOWN: 1}


def test_a_key_in_two_partitions_is_a_fault() -> None:
    sequences = Sequences({KEY: Written(2, frozenset())})
    sequences.record(KEY, 0, 0)
    sequences.record(KEY, 1, 1)
    sequences.finish()
    assert sequences.faults == {ELSEWHERE: 1}


def test_keys_do_not_mix_and_a_fault_names_its_record() -> None:
    sequences = Sequences({KEY: Written(2, frozenset()), OTHER: Written(2, frozenset())})
    for key, number in ((KEY, 0), (OTHER, 0), (OTHER, 1)):
        sequences.record(key, 0, number)
    sequences.finish()
    assert sequences.examples == ["lost: record 1 of key a in orders"]
    assert sequences.records == 3


@given(st.lists(st.integers(0, 11), max_size=24))
def test_no_fault_is_found_exactly_where_all_came_once_in_order(numbers: list[int]) -> None:
    assert (faults(numbers, sent=12) == {}) == (numbers == list(range(12)))


def test_a_ledger_lists_what_was_never_acknowledged(tmp_path: Path) -> None:
    page = Page([KEY, OTHER])
    assert [page.send(KEY), page.send(KEY), page.send(OTHER), page.send(KEY)] == [0, 1, 0, 2]
    page.acknowledge(KEY, 0)
    page.acknowledge(KEY, 2)
    page.acknowledge(OTHER, 0)
    page.write(tmp_path)
    third = Key("payments", "c")
    Page([third]).write(tmp_path)
    assert ledger.read(tmp_path) == {
        KEY: Written(3, frozenset({1})),
        OTHER: Written(1, frozenset()),
        third: Written(0, frozenset()),
    }
