"""`korvet quotas`: quotas of users, client ids and addresses, shown and changed."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.cli.commands import at_broker, done, done_as_json, failed
from tests.support.in_process import InProcessBroker

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
