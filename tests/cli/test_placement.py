"""`korvet topics reassign` and `elect-leaders`, with two brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.admin.client import AdminClient
from tests.cli.commands import done, failed, korvet, refused
from tests.support import redis_servers
from tests.support.broker import Broker, korvet_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with redis_servers.server() as url, korvet_cluster(tmp_path_factory.mktemp("cluster"), url) as running:
        yield running


@pytest.fixture
def topic(brokers: list[Broker], name: str) -> str:
    assert topics(brokers, "create", name, "--replica-assignment", "0,0,0").returncode == 0
    return name


def topics(brokers: list[Broker], command: str, *arguments: str) -> Any:
    return korvet("topics", command, "-b", brokers[0].bootstrap, *arguments)


def leaders(brokers: list[Broker], topic: str) -> list[int]:
    """Return the leaders, which are the same at each broker."""
    result = []
    for broker in brokers:
        with AdminClient(broker.bootstrap) as admin:
            described = admin.topics.describe([topic])[topic]
            result.append([item.leader for item in getattr(described, "partitions", ())])
    assert result[0] == result[1]
    return result[0]


def test_partitions_are_reassigned_by_arguments(brokers: list[Broker], topic: str) -> None:
    assert leaders(brokers, topic) == [0, 0, 0]
    printed = done(topics(brokers, "reassign", f"{topic}:0=1", f"{topic}:2=1,0"))
    assert printed == f"{topic}:0 assigned\n{topic}:2 assigned\n"
    assert leaders(brokers, topic) == [1, 0, 1]
    result = topics(brokers, "reassign", "--list")
    assert (result.returncode, result.stdout) == (0, "no ongoing reassignments\n")
    assert topics(brokers, "reassign", "--list", "--json").stdout == "[]\n"


def test_partitions_are_reassigned_by_a_file_of_kafkas_tool(
    brokers: list[Broker], topic: str, tmp_path: Path
) -> None:
    moves = [{"topic": topic, "partition": 1, "replicas": [1], "log_dirs": ["any"]}]
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    result = topics(brokers, "reassign", "--json", "--file", str(file))
    assert json.loads(result.stdout) == [
        {"topic": topic, "partition": 1, "outcome": "assigned", "error": None}
    ]
    assert leaders(brokers, topic) == [0, 1, 0]


def test_each_impossible_reassignment_is_reported(brokers: list[Broker], topic: str) -> None:
    result = topics(brokers, "reassign", f"{topic}:0=9", f"{topic}:7=1", f"{topic}:1=1")
    message = failed(result)
    assert f"Error: partition {topic}:0: INVALID_REPLICA_ASSIGNMENT" in message
    assert f"Error: partition {topic}:7: UNKNOWN_TOPIC_OR_PARTITION" in message
    assert result.stdout == f"{topic}:1 assigned\n"
    message = failed(topics(brokers, "reassign", "--cancel", f"{topic}:0"))
    assert message.startswith(f"Error: partition {topic}:0: NO_REASSIGNMENT_IN_PROGRESS")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"version": 2, "partitions": []}', "Invalid enum value 2 - at `$.version`"),
        (
            '{"version": 1, "partitions": [{"topic": "a", "partition": "0", "replicas": [1]}]}',
            "Expected `int`, got `str` - at `$.partitions[0].partition`",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": 1}]}',
            "Expected `array`, got `int` - at `$.partitions[0].replicas`",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "a", "partition": 0}]}',
            "Object missing required field `replicas` - at `$.partitions[0]`",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "a", "partition": 4294967296, "replicas": [1]}]}',
            "Expected `int` <= 2147483647 - at `$.partitions[0].partition`",
        ),
    ],
)
def test_a_file_of_another_form_is_a_mistake(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "moves.json"
    file.write_text(content)
    assert f"{file}: {message}; its form is " in refused("topics", "reassign", "--file", str(file))


def test_preferred_leaders_stay(brokers: list[Broker], topic: str) -> None:
    printed = done(topics(brokers, "elect-leaders", topic))
    assert printed == "".join(f"{topic}:{index} stays\n" for index in range(3))
    result = topics(brokers, "elect-leaders", "--json", f"{topic}:1")
    assert json.loads(result.stdout) == [{"topic": topic, "partition": 1, "outcome": "stays", "error": None}]
    assert topics(brokers, "elect-leaders", "--all-topics").returncode == 0
    message = failed(topics(brokers, "elect-leaders", f"{topic}:8"))
    assert message.startswith(f"Error: partition {topic}:8: UNKNOWN_TOPIC_OR_PARTITION")


def test_an_election_that_may_lose_records_is_confirmed_first(brokers: list[Broker], topic: str) -> None:
    assert "nothing is elected" in failed(topics(brokers, "elect-leaders", "--unclean", topic))
    done(topics(brokers, "elect-leaders", "--unclean", "--yes", topic))
