"""korvet/spark/source.py and options.py: what a query asks for, as bounds and values."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from korvet.spark.options import EARLIEST, LATEST, ReadEdge, read_options
from korvet.spark.source import FilterBounds, filter_bounds

SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
NEEDED = {"redis.url": "redis://127.0.0.1/", "topic": "orders"}


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], FilterBounds()),
        ([EqualTo(("partition",), 3)], FilterBounds(partition=(3, 3))),
        ([In(("partition",), (5, 2, None))], FilterBounds(partition=(2, 5))),
        ([GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)], FilterBounds(offset=(7, 9))),
        ([GreaterThanOrEqual(("offset",), 2**60 + 1)], FilterBounds(offset=(2**60 + 1, math.inf))),
        ([LessThan(("timestamp",), SECOND)], FilterBounds(timestamp=(-math.inf, 1_000_000))),
        ([EqualTo(("timestamp",), SECOND)], FilterBounds(timestamp=(1_000_000, 1_000_000))),
        # What is not understood bounds nothing.
        ([Not(EqualTo(("partition",), 3)), IsNotNull(("offset",))], FilterBounds()),
        ([EqualTo(("value",), b"1"), EqualTo(("headers", "key"), "a")], FilterBounds()),
        ([EqualTo(("timestamp",), datetime(1970, 1, 1))], FilterBounds()),  # noqa: DTZ001 - a time without a zone
        ([In(("offset",), (1, "x"))], FilterBounds()),
        ([EqualTo(("partition",), None)], FilterBounds()),
    ],
)
def test_filters_become_bounds_that_are_never_narrower(filters: list[Filter], wanted: FilterBounds) -> None:
    assert filter_bounds(filters) == wanted


def test_options_are_read_in_any_case_and_with_their_defaults() -> None:
    found = read_options({"REDIS.URL": "redis://127.0.0.1/", "topic": "orders"})
    assert (found.source.redis_url, found.source.namespace) == ("redis://127.0.0.1/", "korvet")
    assert (found.lake, found.starting, found.ending) == (None, None, ReadEdge("latest"))
    assert found.fail_on_data_loss
    told: dict[str, Any] = {
        "lake": "s3://bucket/lake",
        "lake.storage.options": "region=eu,secret=a=b",
        "startingOffsets": '{"orders": {"0": 23, "1": -1, "2": -2}}',
        "endingTimestamp": "1000",
        "maxRecordsPerTrigger": "10",
        "failOnDataLoss": "False",
    }
    found = read_options(NEEDED | told)
    assert found.lake is not None
    assert found.lake.storage_options == {"region": "eu", "secret": "a=b"}
    assert found.starting is not None
    assert found.starting.offsets == {0: 23, 1: LATEST, 2: EARLIEST}
    assert found.ending.timestamp == 1000
    assert (found.records_per_trigger, found.fail_on_data_loss) == (10, False)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("topics", "a", "unknown option topics; known are redis.url"),
        ("topic", "", "the option topic is missing"),
        ("startingOffsets", "first", "is not earliest, latest or"),
        ("startingOffsets", '{"others": {"0": 1}}', "is not earliest, latest or"),
        ("startingOffsets", '{"orders": {"0": "1"}}', "is not earliest, latest or"),
        ("endingOffsets", '{"orders": {"0": -3}}', "is not earliest, latest or"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("startingTimestamp", "yesterday", "no timestamp in milliseconds"),
        ("maxRecordsPerTrigger", "0", "no positive number"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("lake.storage.options", "region", "not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_one_clear_error(option: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_options(NEEDED | {"lake": "/lake", option: value})


def test_without_a_redis_url_the_log_is_that_of_the_embedded_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"topic": "orders"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=rf"redis\.url; no embedded server runs on {tmp_path}/korvet-data \(data\.dir\)"
    ):
        read_options(told)
    for directory in (tmp_path / "korvet-data", tmp_path / "others data"):
        directory.mkdir()
        (directory / "server.sock").touch()
    assert read_options(told).source.redis_url == f"unix://{tmp_path}/korvet-data/server.sock"
    found = read_options(told | {"data.dir": "./others data"})
    assert found.source.redis_url == f"unix://{tmp_path}/others%20data/server.sock"


def test_an_end_is_given_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        read_options(NEEDED | {"startingOffsets": "earliest", "startingTimestamp": "1"})
