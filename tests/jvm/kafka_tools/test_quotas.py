"""kafka-configs for quotas: the commands of docs/security.md, what they print, and refusals.

It is the tool for them: kafka-client-quotas.sh, which KIP-546 proposed, is not among Kafka's scripts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jvm.tools import AtBroker

PAGE = Path(__file__).parents[3] / "docs/security.md"
ALICE = ("--entity-type", "users", "--entity-name", "alice")
BOTH_DEFAULTS = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default")
RATES = "consumer_byte_rate=2097152.0, producer_byte_rate=1048576.0"


@pytest.fixture
def page(tools: AtBroker) -> Iterator[list[list[str]]]:
    """Give the commands of the page as arguments of kafka-configs; what they set is removed in the end."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("    kafka-configs.sh")]
    yield [words[words.index("broker:9092") + 1 :] for words in commands]
    of_entities = ((ALICE, "producer_byte_rate,consumer_byte_rate"), (BOTH_DEFAULTS, "request_percentage"))
    for entity, quotas in of_entities:
        tools.done("kafka-configs", "--alter", *entity, "--delete-config", quotas)
    assert tools.done("kafka-configs", "--describe", "--entity-type", "users") == ""


def test_the_commands_of_the_page_set_and_describe_quotas(tools: AtBroker, page: list[list[str]]) -> None:
    *alter, describe = page
    said = [tools.done("kafka-configs", *item) for item in alter]
    assert said[0] == "Completed updating config for user alice.\n"
    assert tools.done("kafka-configs", *describe) == f"Quota configs for user-principal 'alice' are {RATES}\n"
    of_both = ("--describe", "--entity-type", "users", "--entity-type", "clients")
    assert tools.done("kafka-configs", *of_both) == (
        "Quota configs for the default user-principal, the default client-id are request_percentage=20.0\n"
    )


def test_quotas_of_addresses_are_set_and_unset(tools: AtBroker) -> None:
    of = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
    tools.done("kafka-configs", "--alter", *of, "--add-config", "connection_creation_rate=50")
    assert "connection_creation_rate=50.0" in tools.done("kafka-configs", "--describe", *of)
    tools.done("kafka-configs", "--alter", *of, "--delete-config", "connection_creation_rate")
    assert tools.done("kafka-configs", "--describe", *of) == ""
