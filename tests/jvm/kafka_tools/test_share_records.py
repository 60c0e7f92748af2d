"""Kafka's own share consumers, and what kafka-share-groups says of the offsets of their group and does to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jvm.kafka_tools.test_consumer_protocol import SECONDS_MAX, console, send
from tests.jvm.tools import AtBroker
from tests.support import processes
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.records import topic_name


def offsets_of(tools: AtBroker, group: str) -> dict[str, str]:
    """Return where the group begins in each partition."""
    out = tools.done("kafka-share-groups", "--describe", "--offsets", "--group", group)
    return dict(re.findall(rf"^{group} +{group} +(\d+) +(\S+)", out, re.MULTILINE))


def ends_of(tools: AtBroker, topic: str) -> dict[str, str]:
    """Return the end of each partition."""
    out = tools.done("kafka-get-offsets", "--topic", topic)
    return dict(re.findall(rf"^{topic}:(\d+):(\d+)", out, re.MULTILINE))


@pytest.mark.parametrize("prefix", ["tooled", "dense"])
def test_javas_share_consumers_share_records_and_go_on_when_workers_are_killed(
    brokers: list[Broker], tools: AtBroker, tmp_path: Path, prefix: str
) -> None:
    topic = topic_name(prefix)
    tools.done("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
    of = ("--entity-type", "groups", "--entity-name", topic)
    tools.done("kafka-configs", "--alter", *of, "--add-config", "share.auto.offset.reset=earliest")
    bootstrap = ",".join(each.bootstrap for each in brokers)
    first = {f"first {number}" for number in range(40)}
    second = {f"second {number}" for number in range(40)}
    send(bootstrap, topic, first)
    with (
        console("ConsoleShareConsumer", bootstrap, tmp_path, 1, topic) as one,
        console("ConsoleShareConsumer", bootstrap, tmp_path, 2, topic) as two,
    ):

        def read() -> list[str]:
            return [line for each in (one, two) for line in each.read_text().splitlines()]

        wait_until(lambda: len(read()) >= len(first), "the first are read", SECONDS_MAX)
        assert sorted(read()) == sorted(first), "each once"
        wait_until(
            lambda: offsets_of(tools, topic) == ends_of(tools, topic),
            "the first are acknowledged",
            SECONDS_MAX,
        )
        for broker in brokers:
            for pid in broker.worker_pids():
                processes.kill(pid)
        send(bootstrap, topic, second)
        wait_until(lambda: set(read()) == first | second, "the second are read", SECONDS_MAX)
        wait_until(
            lambda: offsets_of(tools, topic) == ends_of(tools, topic),
            "the second are acknowledged",
            SECONDS_MAX,
        )
    tools.done("kafka-share-groups", "--delete-offsets", "--group", topic, "--topic", topic)
    assert offsets_of(tools, topic) == {}
