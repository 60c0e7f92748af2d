"""Moves, elections, log directories and the quorum: of two brokers, and a third that comes and goes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.jvm.kafka_tools.test_topics import partitions
from tests.jvm.tools import AtBroker
from tests.support.broker import Broker, korvet_broker

File = Callable[[Any], str]


def moves(topic: str, *replicas: list[int]) -> dict[str, Any]:
    """Return a plan for the first partitions of a topic, as the tool takes it."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": index, "replicas": item} for index, item in enumerate(replicas)
        ],
    }


def reassign(tools: AtBroker, action: str, plan: str) -> str:
    """Do something with a plan in a file; returns what the tool says."""
    return tools.done("kafka-reassign-partitions", action, "--reassignment-json-file", plan)


def test_a_plan_is_made_executed_verified_and_has_nothing_to_cancel(
    tools: AtBroker, topic: str, file: File
) -> None:
    spec = ("--topics-to-move-json-file", file({"version": 1, "topics": [{"topic": topic}]}))
    made = tools.done("kafka-reassign-partitions", "--generate", *spec, "--broker-list", "1")
    plan = json.loads(made.splitlines()[-1])
    assert [item["replicas"] for item in plan["partitions"]] == [[1], [1]]

    done = reassign(tools, "--execute", file(plan))
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in done
    assert partitions(tools, topic) == [(1, "1", "1")] * 2
    verified = reassign(tools, "--verify", file(plan))
    for index in (0, 1):
        assert f"Reassignment of partition {topic}-{index} is completed." in verified

    # What the tool printed to go back with is a plan too.
    before = json.loads(next(line for line in done.splitlines() if line.startswith("{")))
    assert {item["partition"] for item in before["partitions"]} == {0, 1}
    reassign(tools, "--execute", file(moves(topic, [0, 1], [1, 0])))
    assert partitions(tools, topic) == [(0, "0,1", "0,1"), (1, "1,0", "1,0")]
    assert "is completed" in reassign(tools, "--verify", file(moves(topic, [0, 1], [1, 0])))
    differs = tools.done(
        "kafka-reassign-partitions", "--verify", "--reassignment-json-file", file(moves(topic, [1]))
    )
    assert "replica set is 0,1 rather than 1" in differs

    assert tools.done("kafka-reassign-partitions", "--list") == "No partition reassignments found.\n"
    nothing = reassign(tools, "--cancel", file(moves(topic, [0, 1])))
    assert "None of the specified partition reassignments are active." in nothing


def test_a_throttle_is_accepted_and_cleared_again(tools: AtBroker, topic: str, file: File) -> None:
    plan = file(moves(topic, [1], [0]))
    flags = ("--throttle", "1000", "--replica-alter-log-dirs-throttle", "2000")
    done = tools.done("kafka-reassign-partitions", "--execute", "--reassignment-json-file", plan, *flags)
    assert "The inter-broker throttle limit was set to 1000 B/s" in done
    assert partitions(tools, topic) == [(1, "1", "1"), (0, "0", "0")]
    assert "Clearing broker-level throttles on brokers 0,1" in reassign(tools, "--verify", plan)


def test_the_quorum_is_the_brokers_and_none_lags(tools: AtBroker, brokers: list[Broker], topic: str) -> None:
    said = tools.done("kafka-metadata-quorum", "describe", "--status")
    status = dict(re.split(r":\s+", line, maxsplit=1) for line in said.splitlines())
    assert status["LeaderId"] in {"0", "1"}
    assert all(int(status[name]) > 0 for name in ("LeaderEpoch", "HighWatermark")), topic
    assert [load["id"] for load in json.loads(status["CurrentVoters"])] == [0, 1]
    ports = {load["endpoints"][0].rpartition(":")[2] for load in json.loads(status["CurrentVoters"])}
    assert ports == {broker.bootstrap.rpartition(":")[2] for broker in brokers}
    rows = tools.done("kafka-metadata-quorum", "describe", "--replication").splitlines()[1:]
    assert [(line.split()[3], line.split()[-1]) for line in rows] == [("0", "Leader"), ("0", "Follower")]


def elect(tools: AtBroker, kind: str, *which: str) -> str:
    """Have leaders elected; returns what the tool says."""
    return tools.done("kafka-leader-election", "--election-type", kind, *which)


def test_elections_are_answered_with_the_reason_that_they_change_nothing(
    tools: AtBroker, topic: str, file: File, cluster_redis: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flags = ("--redis-url", cluster_redis, "--broker-id", "2")
    first = ("--topic", topic, "--partition", "0")
    with korvet_broker(tmp_path_factory.mktemp("third"), *flags, workers=1):
        reassign(tools, "--execute", file(moves(topic, [2, 1], [1])))
        assert partitions(tools, topic)[0] == (2, "2,1", "2,1")
        for kind in ("preferred", "unclean"):
            assert elect(tools, kind, *first) == f"Valid replica already elected for partitions {topic}-0\n"
        # Nothing to be said: no partition has another leader than its preferred one.
        assert elect(tools, "preferred", "--all-topic-partitions") == ""
    assert partitions(tools, topic)[0] == (1, "2,1", "1")
    output = tools.refused("kafka-leader-election", "--election-type", "preferred", *first)
    assert "PreferredLeaderNotAvailableException" in output
    assert f"{topic}-0" in output
    assert elect(tools, "unclean", *first) == f"Valid replica already elected for partitions {topic}-0\n"
    reassign(tools, "--execute", file(moves(topic, [0], [1])))


def test_log_directories_hold_each_partition_once(tools: AtBroker, topic: str, file: File) -> None:
    reassign(tools, "--execute", file(moves(topic, [0], [1])))
    output = tools.done("kafka-log-dirs", "--describe", "--topic-list", topic)
    result = json.loads(output.splitlines()[-1])
    assert {
        (item["partition"], broker["broker"]): item["size"]
        for broker in result["brokers"]
        for directory in broker["logDirs"]
        for item in directory["partitions"]
    } == {(f"{topic}-0", 0): 0, (f"{topic}-1", 1): 0}
    plan = moves(topic, [0])
    plan["partitions"][0]["log_dirs"] = [result["brokers"][0]["logDirs"][0]["logDir"]]
    assert "Successfully started moving log directory" in reassign(tools, "--execute", file(plan))
    verified = reassign(tools, "--verify", file(plan))
    assert f"Reassignment of replica {topic}-0-0 completed successfully." in verified
    unknown = tools.refused("kafka-log-dirs", "--describe", "--broker-list", "77")
    assert "do not exist from --broker-list: 77" in unknown
