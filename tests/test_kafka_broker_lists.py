"""The lists of Kafka's broker tests are in their form, and a run fails by what they do not name."""

from __future__ import annotations

import fnmatch

import pytest

from tests.jvm.kafka_broker.lists import HERE, Entry, classes, entries, entries_of, outside
from tests.jvm.kafka_broker.results import Result, judge, shortened

OWNER = "kafka.server.FetchRequestTest"
OUTSIDE = [Entry(OWNER, "testFollower", "wants a follower")]
OPEN = [Entry(OWNER, "testEmptyFetch", "waits, though min_bytes is 0")]


def result(method: str, word: str) -> Result:
    return Result(method, word, 0.5, "")


@pytest.mark.parametrize("name", ["classes.txt", "outside.txt", "outside_time.txt", "open.txt"])
def test_a_list_is_sorted_and_names_nothing_twice(name: str) -> None:
    tests = [line.partition(": ")[0] for line in (HERE / name).read_text().splitlines()]
    assert tests == sorted(set(tests))


def test_each_entry_has_a_reason_and_a_class_that_is_run() -> None:
    listed = outside("time") + entries("open.txt")
    assert not [entry for entry in listed if not fnmatch.filter(classes(), entry.owner)]


def test_no_test_is_named_twice_and_the_list_of_a_layout_is_for_that_alone() -> None:
    named = outside("time") + entries("open.txt")
    twice = [(one, two) for one in named for two in named if one != two and one.names(two.owner, two.method)]
    assert twice == []
    assert set(outside("time")) - set(outside("dense")) == set(entries("outside_time.txt"))
    assert outside("dense") == outside("batch")


@pytest.mark.parametrize("line", [OWNER, f"{OWNER}#testFetch", f"{OWNER}#testFetch: ", f"{OWNER}: why"])
def test_a_line_without_a_test_or_a_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is not CLASS#METHOD,METHOD: REASON"):
        entries_of(line)


def test_an_entry_names_all_invocations_one_of_them_or_tests_by_a_pattern() -> None:
    assert Entry(OWNER, "testFetch", "").names(OWNER, "testFetch#2")
    assert Entry(OWNER, "testFetch#2", "").names(OWNER, "testFetch#2")
    assert Entry(OWNER, "*", "").names(OWNER, "testFetch#2")
    assert Entry(OWNER, "test*Records", "").names(OWNER, "testFetchOfRecords#1")
    assert not Entry(OWNER, "testFetch#2", "").names(OWNER, "testFetch#1")
    assert not Entry(OWNER, "testFetch", "").names(OWNER, "testFetchOfRecords#1")
    assert not Entry(OWNER, "*", "").names("kafka.server.ProduceRequestTest", "testFetch#2")
    assert Entry("kafka.server.*Test", "*", "").names(OWNER, "testFetch")


def test_a_failure_counts_where_a_list_names_it_and_fails_the_run_where_none_does() -> None:
    words = {
        "testFollower": "failed",
        "testEmptyFetch": "failed",
        "testFetch": "failed",
        "testMetrics": "in-process",
        "testOrder": "passed",
        "testRacks": "skipped",
    }
    judged = judge(OWNER, [result(method, word) for method, word in words.items()], OUTSIDE, OPEN)
    assert judged.counts == {"outside": 2, "open": 1, "failed": 1, "passed": 1, "skipped": 1}
    assert [failed.method for failed in judged.failed] == ["testFetch"]
    assert judged.closed == []


def test_a_fault_is_closed_when_all_invocations_of_its_test_pass() -> None:
    first, second = (result(f"testEmptyFetch#{number}", "passed") for number in (1, 2))
    assert judge(OWNER, [first, second], OUTSIDE, OPEN).closed == OPEN
    assert judge(OWNER, [first, second._replace(word="failed")], OUTSIDE, OPEN).closed == []
    assert judge(OWNER, [], OUTSIDE, OPEN).closed == []


def test_two_long_values_are_shown_where_they_begin_to_differ() -> None:
    text = shortened(f"expected: <{'a' * 1000}b{'c' * 1000}> but was: <{'a' * 1000}d{'c' * 1000}>")
    assert "aaab" in text
    assert "aaad" in text
    assert len(text) < 500
