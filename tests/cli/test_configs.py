"""`korvet configs`, `quotas` and `acls`: settings, quotas and ACLs shown and changed."""

from __future__ import annotations

import json
import re
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
    return {item["name"]: item for item in row["configs"]}


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
    result = described(broker, "--topic", name, "--all")
    assert result["segment.ms"]["default"] is True
    retention = result["retention.ms"]
    assert retention["synonyms"][0] == {"name": "retention.ms", "value": "77", "source": "topic"}
    kind = [retention[item] for item in ("type", "read_only", "sensitive", "default", "documentation")]
    assert kind == ["long", False, False, False, None]
    assert described(broker, "--topic", name, "--name", "segment.ms").keys() == {"segment.ms"}
    assert described(broker, "--topic", name, "--documentation")["retention.ms"]["documentation"]


def test_settings_of_a_topic_are_changed_all_or_none(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, retention_ms="77")
    given = ("--set", "segment.ms=5000", "--delete", "retention.ms", "--append", "cleanup.policy=compact")
    assert done(configs(broker, "alter", "-t", name, *given)) == f"altered topic {name}\n"
    results = described(broker, "--topic", name)
    assert (results["segment.ms"]["value"], results["cleanup.policy"]["value"]) == ("5000", "delete,compact")
    # What the broker was started with counts again.
    assert (results["retention.ms"]["value"], results["retention.ms"]["source"]) == ("-1", "static")
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
    results = described(cluster, "--broker", "0", "--name", "log.retention.ms")
    assert results["log.retention.ms"]["source"] == "cluster"


def test_what_is_sensitive_or_fixed_is_marked(broker: InProcessBroker) -> None:
    results = described(broker, "--broker", "0", "--all")
    assert (results["listen"]["read_only"], results["listen"]["source"]) == (True, "static")
    assert any(value["sensitive"] and value["value"] is None for value in results.values())
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


quotas = partial(at_broker, "quotas")


def rows(text: str) -> list[list[str]]:
    """Return the cells of the lines of a table, without its head."""
    return [re.split("  +", line) for line in text.splitlines()[1:]]


def test_quotas_are_set_shown_and_deleted(broker: InProcessBroker, name: str) -> None:
    user = ("--entity-type", "users", "--entity-name", name)
    assert done(quotas(broker, "alter", *user, "--set", "producer_byte_rate=1e9")) == f"altered user {name}\n"
    assert rows(done(quotas(broker, "describe", *user))) == [
        [f"user {name}", "producer_byte_rate", "1000000000"]
    ]
    assert done_as_json("quotas", "describe", "-b", broker.bootstrap, *user) == [
        {"entity": {"user": name}, "quotas": {"producer_byte_rate": 1e9}}
    ]
    changes = ("--set", "request_percentage=12345.5", "--delete", "producer_byte_rate")
    said = done(quotas(broker, "alter", *user, *changes, "--validate-only"))
    assert said == f"could be altered user {name}\n"
    done(quotas(broker, "alter", *user, *changes))
    assert rows(done(quotas(broker, "describe", *user))) == [
        [f"user {name}", "request_percentage", "12345.5"]
    ]
    done(quotas(broker, "alter", *user, "--delete", "request_percentage"))
    assert done(quotas(broker, "describe", *user)) == "no quotas\n"


@pytest.mark.parametrize("default_first", [True, False])
def test_names_and_defaults_belong_to_types_in_their_order(
    broker: InProcessBroker, name: str, *, default_first: bool
) -> None:
    types = ("--entity-type", "users", "--entity-type", "clients")
    name_flags, default = ("--entity-name", name), ("--entity-default",)
    names = (*default, *name_flags) if default_first else (*name_flags, *default)
    user, client_id = ("<default>", name) if default_first else (name, "<default>")
    title = f"client-id {client_id}, user {user}"
    done(quotas(broker, "alter", *types, *names, "--set", "consumer_byte_rate=1000000000"))
    every = done(quotas(broker, "describe", *types))
    assert [title, "consumer_byte_rate", "1000000000"] in rows(every)
    # Just the types that are given.
    assert title not in done(quotas(broker, "describe", "--entity-type", "users"))
    assert title in done(quotas(broker, "describe"))
    done(quotas(broker, "alter", *types, *names, "--delete", "consumer_byte_rate"))
    assert title not in done(quotas(broker, "describe"))


def test_a_broker_says_why_it_refuses_a_quota(broker: InProcessBroker, name: str) -> None:
    of = ("--entity-type", "clients", "--entity-name", name)
    assert "must be greater than 0" in failed(quotas(broker, "alter", *of, "--set", "producer_byte_rate=-1"))
    assert "Invalid configuration key nothing" in failed(quotas(broker, "alter", *of, "--set", "nothing=1"))


acls = partial(at_broker, "acls")


def listed(broker: InProcessBroker, *arguments: str) -> list[tuple[str, ...]]:
    rows = done_as_json("acls", "list", "-b", broker.bootstrap, *arguments)
    names = ("resource", "pattern", "principal", "host", "operation", "permission")
    return [tuple(row[name] for name in names) for row in rows]


def test_acls_are_added_listed_and_once_that_is_confirmed_removed(broker: InProcessBroker, name: str) -> None:
    given = f"--topic {name} --allow-principal User:alice --operation read --allow-host 10.0.0.1".split()
    assert done(acls(broker, "add", *given)) == (
        f"added ALLOW User:alice from 10.0.0.1 READ on TOPIC:LITERAL:{name}\n"
    )
    assert listed(broker, "--topic", name) == [
        ("Topic", "literal", "User:alice", "10.0.0.1", "Read", "allow")
    ]
    assert listed(broker, "--topic", name, "--principal", "User:bob") == []
    assert listed(broker, "--topic", name[:-1]) == []
    assert name in done(acls(broker, "list"))
    assert "no ACL matches" in done(acls(broker, "remove", *given[:4], "--yes"))
    assert "Removed nothing" in failed(acls(broker, "remove", *given))
    assert len(listed(broker, "--topic", name)) == 1
    assert f"TOPIC:LITERAL:{name}" in done(acls(broker, "remove", *given, "--yes"))
    assert listed(broker, "--topic", name) == []


def test_roles_are_those_of_kafkas_tool(broker: InProcessBroker, name: str) -> None:
    who = ("--allow-principal", "User:p")
    producer = ("--producer", "--idempotent", "--topic", name, *who)
    done(acls(broker, "add", *producer))
    assert {item[4] for item in listed(broker, "--topic", name)} == {"Write", "Describe", "Create"}
    assert ("Cluster", "literal", "User:p", "*", "IdempotentWrite", "allow") in listed(broker, "--cluster")
    consumer = ("--consumer", "--topic", name, "--group", name, *who)
    done(acls(broker, "add", *consumer))
    assert {item[4] for item in listed(broker, "--topic", name)} == {"Write", "Describe", "Create", "Read"}
    assert [item[4] for item in listed(broker, "--group", name)] == ["Read"]
    done(acls(broker, "remove", "--yes", *producer))
    done(acls(broker, "remove", "--yes", *consumer))
    assert (
        listed(broker, "--topic", name) + listed(broker, "--group", name) + listed(broker, "--cluster") == []
    )


def test_patterns_that_match_are_found(broker: InProcessBroker, name: str) -> None:
    denied = ("--deny-principal", "User:eve", "--operation", "DescribeConfigs")
    done(acls(broker, "add", "--topic", name, "--resource-pattern-type", "prefixed", *denied))
    assert listed(broker, "--topic", f"{name}-more") == []
    row = ("Topic", "prefixed", "User:eve", "*", "DescribeConfigs", "deny")
    assert listed(broker, "--topic", f"{name}-more", "--resource-pattern-type", "match") == [row]
    assert listed(broker, "--topic", name, "--resource-pattern-type", "any") == [row]
    done(acls(broker, "remove", "--yes", "--topic", f"{name}-more", "--resource-pattern-type", "match"))
    assert listed(broker, "--topic", name, "--resource-pattern-type", "any") == []
