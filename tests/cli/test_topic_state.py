"""`korvet topics state`: the state of partitions as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.log.packed import LOG_FIELD
from korvet.topics.registry import TopicSpec
from tests.cli.commands import korvet
from tests.support.batches import Record
from tests.support.domain import Domain
from tests.support.partition_state import log_of, producers_of
from tests.support.transactions import TransactionalProducer


@pytest.fixture
def topic(here: Domain) -> str:
    """Give a topic of two partitions, the first of which has an open transaction."""
    here.topics.create(TopicSpec(name="orders", partitions=2))
    here.append("orders", Record(b"a", timestamp=1000))
    TransactionalProducer(here, producer_id=2**62).write(b"b", b"c")
    return "orders"


def test_all_fields_are_unpacked(here: Domain, topic: str, redis_url: str, raw_redis: Any) -> None:
    result = korvet("topics", "state", topic, "--redis-url", redis_url, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    written, empty = json.loads(result.stdout)
    partition = here.topics.get(topic).partition(0)
    [(producer_id, row)] = producers_of(raw_redis, partition.state).items()
    assert written == {
        "topic": topic,
        "partition": 0,
        "state": partition.state,
        "stream": partition.stream,
        "entries": 3,
        "log": log_of(raw_redis, partition.state)._asdict(),
        "fields": {
            name: raw_redis.hget(partition.state, name).decode()
            for name in ("claim", "epochs", "open", "topic")
        },
        "producers": [
            {
                "id": producer_id,
                "epoch": 0,
                "next_sequence": 2,
                "last_ms": row.last_ms,
                "transaction": row.transaction,
                "first_offset": row.first_offset,
                "batches": [{"records": 2, "base_offset": row.first_offset}],
            }
        ],
        "problems": [],
    }
    assert (empty["partition"], empty["entries"], empty["log"]["next_offset"]) == (1, 0, 0)
    assert empty["producers"] == []


def test_a_partition_is_printed_for_people(here: Domain, topic: str, redis_url: str, raw_redis: Any) -> None:
    result = korvet("topics", "state", topic, "0", "--redis-url", redis_url)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    state = here.topics.get(topic).partition(0).state
    [(_, row)] = producers_of(raw_redis, state).items()
    assert lines[0] == ["orders:0", state]
    assert ["next_offset", str(log_of(raw_redis, state).next_offset)] in lines
    [producer] = [line for line in lines if line[0] == str(2**62)]
    assert producer[1:3] == ["0", "2"]
    assert producer[-3:] == [str(row.transaction), str(row.first_offset), f"{row.first_offset}+2"]


def test_what_is_malformed_is_named(here: Domain, topic: str, redis_url: str, raw_redis: Any) -> None:
    first, second = here.topics.get(topic).partitions
    raw_redis.hset(first.state, LOG_FIELD, "0")
    raw_redis.hset(first.state, "7", "no row")
    raw_redis.delete(second.stream)
    result = korvet("topics", "state", topic, "--redis-url", redis_url, "--json")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"Error: {first.state}: the field 7, a producer, is malformed",
        f"Error: {first.state}: the field log is malformed",
        f"Error: {second.stream} is missing, with all its entries",
    ]
    assert [row["log"] is None for row in json.loads(result.stdout)] == [True, False]


def test_what_is_not_there_is_one_line(topic: str, redis_url: str) -> None:
    for arguments, said in (
        (("none",), "topic none is unknown in namespace korvet"),
        ((topic, "2"), "topic orders has 2 partitions"),
        ((topic, "--set", "namespace=other"), "topic orders is unknown in namespace other"),
    ):
        result = korvet("topics", "state", *arguments, "--redis-url", redis_url)
        assert (result.returncode, result.stderr) == (1, f"Error: {said}\n")
