"""kafka-topics: what it creates, alters, describes and deletes, and each refusal by its name."""

from __future__ import annotations

import re

from tests.jvm.tools import AtBroker
from tests.support.records import topic_name

Partition = tuple[int, str, str]


def partitions(tools: AtBroker, name: str) -> list[Partition]:
    """Return leader, replicas and in-sync replicas of each partition."""
    output = tools.done("kafka-topics", "--describe", "--topic", name)
    result = re.findall(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\S+)\tIsr: (\S+)", output)
    assert [int(number) for number, *_ in result] == list(range(len(result)))
    return [(int(leader), replicas, in_sync) for _, leader, replicas, in_sync in result]


def listed(tools: AtBroker) -> list[str]:
    """Return all topics."""
    return tools.done("kafka-topics", "--list").split()


def test_topics_are_created_described_grown_and_deleted(tools: AtBroker) -> None:
    by_number, by_assignment = topic_name("by-number"), topic_name("by-assignment")
    configs = ("--config", "retention.ms=1000", "--config", "cleanup.policy=compact,delete")
    many = ("--partitions", "3", "--replication-factor", "3")
    made = tools.done("kafka-topics", "--create", "--topic", by_number, *many, *configs)
    assert made == f"Created topic {by_number}.\n"
    tools.done("kafka-topics", "--create", "--topic", by_assignment, "--replica-assignment", "0:1,1:0")
    assert tools.done("kafka-topics", "--create", "--topic", by_number, "--if-not-exists") == ""

    output = tools.done("kafka-topics", "--describe", "--topic", by_number)
    head = re.match(
        rf"Topic: {by_number}\tTopicId: (\S{{22}})\tPartitionCount: 3\tReplicationFactor: 1\t", output
    )
    assert head is not None, output
    for config in ("retention.ms=1000", "cleanup.policy=compact,delete"):
        assert config in output
    # Asked by id the tool does not ask who else might lead, and says so.
    by_id = tools.done("kafka-topics", "--describe", "--topic-id", head[1])
    assert by_id.replace("N/A", "") == output
    assert partitions(tools, by_assignment) == [(0, "0,1", "0,1"), (1, "1,0", "1,0")]

    tools.done("kafka-topics", "--alter", "--topic", by_number, "--partitions", "4")
    assert len(partitions(tools, by_number)) == 4
    given = ("--partitions", "3", "--replica-assignment", "0:1,1:0,1")
    assert tools.refused("kafka-topics", "--alter", "--topic", by_assignment, *given)
    given = ("--partitions", "3", "--replica-assignment", "0:1,1:0,1:0")
    tools.done("kafka-topics", "--alter", "--topic", by_assignment, *given)
    assert partitions(tools, by_assignment)[2] == (1, "1,0", "1,0")

    assert {by_number, by_assignment} <= set(listed(tools))
    for name in (by_number, by_assignment):
        assert tools.done("kafka-topics", "--delete", "--topic", name) == ""
    assert not {by_number, by_assignment} & set(listed(tools))
    missing = tools.refused("kafka-topics", "--describe", "--topic", by_number)
    assert f"Topic '{by_number}' does not exist" in missing


def test_partitions_that_lack_something_are_none(tools: AtBroker, topic: str) -> None:
    wanting = ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions")
    for flag in wanting:
        assert tools.done("kafka-topics", "--describe", flag) == ""
    overridden = tools.done("kafka-topics", "--describe", "--topics-with-overrides", "--topic", topic)
    assert f"Topic: {topic}\t" in overridden
