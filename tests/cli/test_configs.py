"""`korvet configs`: settings of topics, brokers and the cluster, shown and changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.cli.commands import at_broker, done, done_as_json, failed, table
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client

configs = partial(at_broker, "configs")


def described(broker: InProcessBroker, *arguments: str) -> Any:
    """Return name -> setting of the one resource that is described."""
    [row] = done_as_json("configs", "describe", "-b", broker.bootstrap, *arguments)
    return {each["name"]: each for each in row["configs"]}


@pytest.fixture
def cluster(broker: InProcessBroker) -> Iterator[InProcessBroker]:
    """Give the broker, and leave nothing set that tests set for all brokers."""
    yield broker
    assert configs(broker, "alter", "--cluster", "--delete", "log.retention.ms").returncode == 0


def test_what_is_set_for_a_topic_is_shown(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name, retention_ms="77")
    printed = done(configs(broker, "describe", "--topic", name))
    assert printed.splitlines()[0] == f"topic {name}"
    rows = {row[0]: row[1:] for row in table(printed)}
    assert rows["retention.ms"] == ["77", "topic"]
    assert "segment.ms" not in rows
    found = described(broker, "--topic", name, "--all")
    assert found["segment.ms"]["default"] is True
    retention = found["retention.ms"]
    assert retention["synonyms"][0] == {"name": "retention.ms", "value": "77", "source": "topic"}
    kind = [retention[each] for each in ("type", "read_only", "sensitive", "default", "documentation")]
    assert kind == ["long", False, False, False, None]
    assert described(broker, "--topic", name, "--name", "segment.ms").keys() == {"segment.ms"}
    assert described(broker, "--topic", name, "--documentation")["retention.ms"]["documentation"]


def test_settings_of_a_topic_are_changed_all_or_none(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, retention_ms="77")
    given = ("--set", "segment.ms=5000", "--delete", "retention.ms", "--append", "cleanup.policy=compact")
    assert done(configs(broker, "alter", "-t", name, *given)) == f"altered topic {name}\n"
    found = described(broker, "--topic", name)
    assert (found["segment.ms"]["value"], found["cleanup.policy"]["value"]) == ("5000", "delete,compact")
    # What the broker was started with counts again.
    assert (found["retention.ms"]["value"], found["retention.ms"]["source"]) == ("-1", "static")
    result = configs(broker, "alter", "-t", name, "--subtract", "cleanup.policy=delete")
    assert result.returncode == 0
    assert described(broker, "--topic", name)["cleanup.policy"]["value"] == "compact"
    message = failed(configs(broker, "alter", "-t", name, "--set", "segment.ms=6000", "--set", "no.such=1"))
    assert message.startswith(f"Error: topic {name}: INVALID_CONFIG")
    result = configs(broker, "alter", "-t", name, "--set", "segment.ms=6000", "--validate-only", "--json")
    assert json.loads(result.stdout) == [{"type": "topic", "name": name, "error": None}]
    assert described(broker, "--topic", name)["segment.ms"]["value"] == "5000"


def test_settings_of_all_brokers_are_changed(cluster: InProcessBroker) -> None:
    altered = configs(cluster, "alter", "--cluster", "--set", "log.retention.ms=123456789")
    assert done(altered) == "altered cluster\n"
    result = configs(cluster, "describe", "--cluster")
    assert result.stdout.splitlines()[0] == "cluster"
    assert ["log.retention.ms", "123456789", "cluster"] in table(result.stdout)
    found = described(cluster, "--broker", "0", "--name", "log.retention.ms")
    assert found["log.retention.ms"]["source"] == "cluster"


def test_what_is_sensitive_or_fixed_is_marked(broker: InProcessBroker) -> None:
    found = described(broker, "--broker", "0", "--all")
    assert (found["listen"]["read_only"], found["listen"]["source"]) == (True, "static")
    assert any(each["sensitive"] and each["value"] is None for each in found.values())
    result = configs(broker, "alter", "--broker", "0", "--set", "listen=127.0.0.1:1")
    assert failed(result).startswith("Error: broker 0: ")


def test_several_are_shown_and_unknown_ones_reported(broker: InProcessBroker, topic: str) -> None:
    result = configs(broker, "describe", "-t", topic, "-t", "nothing", "--broker", "0", "--broker", "9")
    message = failed(result)
    assert "Error: topic nothing: UNKNOWN_TOPIC_OR_PARTITION" in message
    assert "Error: broker 9: " in message
    assert message.count("\n") == 2
    assert f"topic {topic}\n" in result.stdout
    assert "broker 0\n" in result.stdout
