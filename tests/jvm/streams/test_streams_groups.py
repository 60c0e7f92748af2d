"""Kafka Streams by its own rebalance protocol (KIP-1071), for which the broker assigns tasks and creates topics."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.jvm.streams.test_streams import PARTITIONS, Brokers, Instances, Lines, check, results, write_labels
from tests.jvm.tools import AtBroker, kafka_tools
from tests.support import reading, redis_servers
from tests.support.processes import wait_until

GROUP = "word-count"
MEMBERS = ("--members", "--verbose")


def described(tools: AtBroker, *flags: str) -> list[list[str]]:
    """Return the rows of kafka-streams-groups --describe, without the headings."""
    out = tools.done("kafka-streams-groups", "--describe", "--group", GROUP, *flags)
    return [line.split() for line in out.splitlines() if line.split()[:1] not in ([], ["GROUP"])]


@pytest.mark.timeout(900)
def test_words_are_counted_once_though_an_instance_is_killed(tmp_path: Path, classes: Path) -> None:
    with redis_servers.server() as url, contextlib.ExitStack() as running:
        brokers = Brokers(running, tmp_path, url)
        for topic in ("labels", "lines", "counts", "windows"):
            reading.create_topic(brokers.bootstrap, topic, PARTITIONS)
        write_labels(brokers.bootstrap)
        lines = Lines(brokers.bootstrap)
        instances = Instances(tmp_path, brokers.bootstrap, classes, 2, "streams")
        running.callback(instances.end)
        lines.start()
        running.callback(lines.end)
        tools = AtBroker(running.enter_context(kafka_tools(tmp_path)), brokers.bootstrap)
        standby = ("--alter", "--add-config", "streams.num.standby.replicas=1")
        tools.done("kafka-configs", "--entity-type", "groups", "--entity-name", GROUP, *standby)
        try:
            wait_until(lambda: described(tools, "--state")[0][-2:] == ["Stable", "4"], "all have tasks", 120)
            assert GROUP in tools.done("kafka-streams-groups", "--list")
            assert "TARGET-STANDBY:" in tools.done(
                "kafka-streams-groups", "--describe", "--group", GROUP, *MEMBERS
            )
            time.sleep(5)
            instances.take_down(0)
            wait_until(lambda: described(tools, "--state")[0][-2:] == ["Stable", "2"], "two are left", 120)
            time.sleep(5)
            lines.end()
            total = lines.counts.total()
            check(results(brokers.bootstrap, "counts", total), lines.counts)
            check(results(brokers.bootstrap, "windows", total), lines.windows)
            instances.check_alive()
            members = described(tools, *MEMBERS)
            assert len(members) == 2, members
        except BaseException:
            print(*instances.logs(), sep="\n")  # noqa: T201 - pytest shows it
            raise
        assert total > 0
