"""`korvet acls`: ACLs added, listed and removed, with the options of Kafka's tool."""

from __future__ import annotations

from functools import partial

from tests.cli.commands import at_broker, done, done_as_json, failed
from tests.support.in_process import InProcessBroker

acls = partial(at_broker, "acls")


def listed(broker: InProcessBroker, *arguments: str) -> list[tuple[str, ...]]:
    rows = done_as_json("acls", "list", "-b", broker.bootstrap, *arguments)
    names = ("resource", "pattern", "principal", "host", "operation", "permission")
    return [tuple(row[each] for each in names) for row in rows]


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
    assert {each[4] for each in listed(broker, "--topic", name)} == {"Write", "Describe", "Create"}
    assert ("Cluster", "literal", "User:p", "*", "IdempotentWrite", "allow") in listed(broker, "--cluster")
    consumer = ("--consumer", "--topic", name, "--group", name, *who)
    done(acls(broker, "add", *consumer))
    assert {each[4] for each in listed(broker, "--topic", name)} == {"Write", "Describe", "Create", "Read"}
    assert [each[4] for each in listed(broker, "--group", name)] == ["Read"]
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
