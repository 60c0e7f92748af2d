"""`korvet lake query` as an analyst runs it, on a real Redis, a real lake and a real Spark."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import SPARK_SECONDS_MAX, failed, korvet_process
from tests.cli.terminal import at_terminal, exit_code
from tests.support.archives import Topics, where
from tests.support.batches import Record

pytestmark = pytest.mark.spark


@pytest.fixture
def topics(topics: Topics) -> Topics:
    """Give a topic of which one batch is archived and one is not."""
    [orders] = topics.make("orders", "batch").partitions
    topics.produce(orders, Record(b"1", b"k", 1_700_000_000_000, [("a", b"\xff")]))
    assert topics.archiver().round(topics.run).records == 1
    topics.produce(orders, b"20", None)
    return topics


def query(topics: Topics, sql: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = (*where(topics), "--master", "local[1]")
    here = Path(topics.lake).parent / "here"
    here.mkdir(exist_ok=True)
    result = korvet_process("lake", "query", *place, *arguments, sql, cwd=here, seconds_max=SPARK_SECONDS_MAX)
    # Spark, left to itself, makes a directory wherever it is started.
    assert list(here.iterdir()) == []
    return result


def quiet(result: subprocess.CompletedProcess[str]) -> bool:
    """Tell whether a command succeeded, and said on stderr only what takes long, and how long it has taken."""
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"(starting Spark: \d+ s\n){2,}(running the query: \d+ s\n){2,}", result.stderr)
    return True


def test_a_query_that_needs_few_of_many_rows_ends_quietly(topics: Topics) -> None:
    partition = topics.stores.topic("orders").partitions[0]
    for _ in range(20):
        topics.produce(partition, *[b"x" * 1000] * 1000)
    result = query(topics, "select value from orders limit 1", "--csv")
    assert quiet(result)
    assert result.stdout == "value\n1\n"


def test_a_person_sees_that_spark_starts_and_how_long_it_has_taken(topics: Topics) -> None:
    place = (*where(topics), "--master", "local[1]")
    with at_terminal("lake", "query", *place, "select count(*) as n from orders") as child:
        child.timeout = SPARK_SECONDS_MAX
        child.expect(r"starting Spark: \d+ s")
        child.expect(r"running the query: \d+ s")
        child.expect(r"\bn\r\n─\r\n3\r\n")
        assert exit_code(child) == 0


def test_rows_of_both_tiers_are_printed_and_nothing_else(topics: Topics) -> None:
    sql = "select key, value, timestamp, headers, offset as `the offset` from orders order by offset"
    result = query(topics, sql, "--json")
    assert quiet(result)
    assert query(topics, sql, "--json", "--as-of", "1").stdout == result.stdout.partition("\n")[0] + "\n"
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert first == {
        "key": "k",
        "value": "1",
        "timestamp": "2023-11-14 22:13:20",
        "headers": [{"key": "a", "value": "\\xff"}],
        "the offset": 0,
    }
    assert (second["key"], second["value"], second["headers"]) == (None, "20", None)
    assert (third["value"], third["the offset"]) == (None, 2)


def test_a_wrong_query_is_one_clear_error(topics: Topics) -> None:
    missing = "Error: [TABLE_OR_VIEW_NOT_FOUND] The table or view `others` cannot be found."
    assert missing in failed(query(topics, "select * from others"))
    excluded = query(topics, "select 1", "--csv", "--json")
    assert "--csv, --json and --parquet exclude each other" in failed(excluded, 2)
    as_of = query(topics, "select 1", "--as-of", "now")
    assert "Error: --as-of takes 2026-01-31T12:00:00+01:00" in failed(as_of, 2)
