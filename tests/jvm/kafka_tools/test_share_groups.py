"""kafka-share-groups, kafka-console-share-consumer and what other tools say of share groups (KIP-932)."""

from __future__ import annotations

import re

import pytest

from tests.jvm.share import EXPLICIT, Start, configure, send
from tests.jvm.tools import AtBroker
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.records import topic_name

# Dense offsets, which can be counted in tests.
PREFIX = "dense-share"


@pytest.fixture
def bootstrap(brokers: list[Broker]) -> str:
    """Give the address that the tools are given."""
    return brokers[0].bootstrap


@pytest.fixture
def topic(tools: AtBroker, bootstrap: str) -> str:
    """Give a topic of two partitions with three records in each, whose name is a group's that begins at its start."""
    name = topic_name(PREFIX)
    tools.done("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    configure(bootstrap, name, share_auto_offset_reset="earliest")
    for partition in range(2):
        send(bootstrap, name, [f"{partition}{number}" for number in range(3)], partition)
    return name


def rows(tools: AtBroker, *arguments: str) -> list[list[str]]:
    """Return the rows of a table of kafka-share-groups, without its head."""
    lines = tools.done("kafka-share-groups", *arguments).splitlines()
    [head] = [number for number, line in enumerate(lines) if re.match("(GROUP|TOPIC) ", line)]
    return sorted(line.split() for line in lines[head + 1 :] if line)


def lags(tools: AtBroker, group: str) -> list[str]:
    """Return how many records of each partition of a group's topic are not done with."""
    return [row[-1] for row in rows(tools, "--describe", "--group", group, "--offsets")]


def consume(tools: AtBroker, topic: str, count: int, *more: str) -> list[str]:
    """Return the lines that the console consumer prints for `count` records."""
    of = ("--topic", topic, "--group", topic, "--max-messages", str(count), *more)
    outcome = tools.run("kafka-console-share-consumer", *of)
    assert outcome.code == 0, outcome
    assert f"Processed a total of {count} messages" in outcome.err
    return sorted(outcome.out.splitlines())


def test_the_console_consumer_accepts_releases_and_rejects(tools: AtBroker, bootstrap: str) -> None:
    topic = topic_name(PREFIX)  # of one partition: what it releases of one may come before another's
    configure(bootstrap, topic, share_auto_offset_reset="earliest")
    send(bootstrap, topic, ["a", "b"])
    counted = ("--formatter-property", "print.delivery=true")
    assert consume(tools, topic, 2, "--release", *counted) == ["Delivery:1\ta", "Delivery:1\tb"]
    assert consume(tools, topic, 2, *counted) == ["Delivery:2\ta", "Delivery:2\tb"]
    send(bootstrap, topic, ["bad"])
    assert consume(tools, topic, 1, "--reject", *counted) == ["Delivery:1\tbad"]
    send(bootstrap, topic, ["next"])
    assert consume(tools, topic, 1, *counted) == ["Delivery:1\tnext"]


def test_a_group_is_listed_and_described(
    tools: AtBroker, topic: str, brokers: list[Broker], share: Start
) -> None:
    one = share(topic, topic, EXPLICIT)
    one.take(6)
    assert topic in tools.done("kafka-share-groups", "--list").split()
    assert [topic, "Stable"] in rows(tools, "--list", "--state")
    assert [topic, "Stable"] not in rows(tools, "--list", "--state", "Empty")
    assert re.search(rf"^{topic}\s+Share\s+share", tools.done("kafka-groups", "--list"), re.MULTILINE)
    of = ("--describe", "--group", topic)
    [state] = rows(tools, *of, "--state")
    assert (state[0], state[3:]) == (topic, ["Stable", "1"])
    assert state[1] in {broker.bootstrap for broker in brokers}
    [member] = rows(tools, *of, "--members")
    assert member[0] == topic
    assert member[-1] == f"{topic}:0,1"
    assert lags(tools, topic) == ["0", "0"]
    assert "GroupNotEmptyException" in tools.done("kafka-share-groups", "--delete", "--group", topic)
    one.close()
    wait_until(lambda: [topic, "Empty"] in rows(tools, "--list", "--state"), "its last member has left")
    assert "has no active members" in tools.run("kafka-share-groups", *of, "--members").err


def test_offsets_are_reset_and_deleted(tools: AtBroker, topic: str) -> None:
    consume(tools, topic, 6)
    group = ("--group", topic)
    assert lags(tools, topic) == ["0", "0"]
    reset = ("--reset-offsets", *group, "--topic", f"{topic}:1", "--to-earliest")
    assert rows(tools, *reset, "--dry-run") == [[topic, topic, "1", "0"]]
    assert lags(tools, topic) == ["0", "0"]
    assert rows(tools, *reset, "--execute") == [[topic, topic, "1", "0"]]
    assert lags(tools, topic)[0] == "0"
    assert consume(tools, topic, 3) == ["10", "11", "12"]
    everywhere = ("--reset-offsets", *group, "--all-topics", "--execute")
    for offset, *to in (
        ("0", "--to-datetime", "2020-01-01T00:00:00.000"),
        ("3", "--to-latest"),
        ("0", "--to-earliest"),
    ):
        both = [[topic, topic, str(partition), offset] for partition in range(2)]
        assert rows(tools, *everywhere, *to) == both
        # Kafka does not know the lag until something is acknowledged.
        assert [row[:-1] for row in rows(tools, "--describe", *group)] == both
    deleted = tools.done("kafka-share-groups", "--delete-offsets", *group, "--topic", topic)
    assert re.search(rf"^{topic}\s+Successful$", deleted, re.MULTILINE)
    assert f"{topic} " not in tools.done("kafka-share-groups", "--describe", *group)
    assert len(consume(tools, topic, 6)) == 6


def test_a_group_is_deleted_and_begins_again(tools: AtBroker, topic: str) -> None:
    assert len(consume(tools, topic, 6)) == 6
    tools.done("kafka-share-groups", "--delete", "--group", topic)
    assert topic not in tools.done("kafka-share-groups", "--list").split()
    assert len(consume(tools, topic, 6)) == 6
    said = tools.done("kafka-share-groups", "--delete", "--group", topic_name("none"))
    assert "is not a share group" in said
