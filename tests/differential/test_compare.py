"""The comparison: each field that differs is named, and rows of expected.toml take what they name and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.compare import ABSENT, Difference, Expected, differences, expected, report
from tests.differential.rooms import ROOMS
from tests.differential.session import Exchange

ROW = Expected(["Fetch"], ["fetch: *"], ["Topics.*"], ["*"], ["NONE", "0"], "why", versions="2-4")


def compared(kafka: Any, korvet: Any) -> list[tuple[str, str, str]]:
    exchanges = ([Exchange("fetch: one", "Fetch", 3, answer)] for answer in (kafka, korvet))
    return [difference[3:] for difference in differences(*exchanges)]


@pytest.mark.parametrize(
    ("kafka", "korvet", "fields"),
    [
        ({"A": "1", "B": []}, {"A": "1", "B": []}, []),
        ({"A": "1"}, {"A": "2"}, [("A", "1", "2")]),
        ({"A": "null"}, {"A": []}, [("A", "null", "[]")]),
        ({"A": "1"}, {"A": "1", "(rest)": "00"}, [("(rest)", ABSENT, "00")]),
        ({"ErrorCode": "NONE"}, "closes", [("", "answers", "closes")]),
        ({"T": [{"Name": "a"}, {"Name": "b"}]}, {"T": [{"Name": "b"}, {"Name": "a"}]}, []),
        ({"T": [{"Name": "a", "X": "1"}]}, {"T": [{"Name": "a", "X": "2"}]}, [("T.X", "1", "2")]),
        ({"T": [{"Name": "a"}, {"Name": "b"}]}, {"T": [{"Name": "a"}]}, [("T", "Name=b", ABSENT)]),
    ],
)
def test_each_field_that_differs_is_named(
    kafka: Any, korvet: Any, fields: list[tuple[str, str, str]]
) -> None:
    assert compared(kafka, korvet) == fields


def test_a_request_that_one_broker_did_not_get_differs() -> None:
    assert [row[3:] for row in differences([Exchange("fetch: one", "Fetch", 3, {})], [])] == [
        ("", "answers", "was not asked")
    ]


@pytest.mark.parametrize(
    ("change", "matches"),
    [
        ({}, True),
        ({"version": 5}, False),
        ({"api": "Produce"}, False),
        ({"field": "Error"}, False),
        ({"korvet": "1"}, False),
        ({"korvet": "0"}, True),
    ],
)
def test_a_row_takes_what_it_names(change: dict[str, Any], matches: bool) -> None:  # noqa: FBT001 - a column
    difference = Difference("Fetch", 3, "fetch: one", "Topics.Name", "x", "NONE")
    assert ROW.matches(difference._replace(**change)) == matches


def test_a_report_merges_versions_and_requests_with_one_cause() -> None:
    same_cause = [
        Difference("Fetch", version, f"fetch: {label}", "A", "1", "2") for label in "xy" for version in (3, 4)
    ]
    assert list(report(same_cause)) == ["Fetch: fetch: x v3-4; fetch: y v3-4", "    A: Kafka 1, Korvet 2"]


def test_each_row_has_a_reason_and_names_requests_of_a_room() -> None:
    assert [row for row in expected() if not row.reason.endswith(".")] == []
    requests = {request for row in expected() for request in row.request if not request.startswith("*")}
    assert {request.partition(":")[0] for request in requests} - ROOMS.keys() == set()
