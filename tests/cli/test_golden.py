"""What each command prints, as an operator sees it: a transcript of each in tests/cli/golden, made from one scenario.

tests/cli/lake/test_golden.py has the commands of the lake.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.cli import commands
from tests.cli.conftest import SETTINGS
from tests.cli.transcripts import GOLDEN, check_transcript, names, transcript_of
from tests.support.in_process import InProcessBroker, only_broker
from tests.support.reading import produce

NEW_YEAR_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the time of each record."""

# In the order in which they run: each begins with what the ones before have left. IN: standard input.
SCENARIO: dict[str, tuple[str, ...]] = {
    "topics create": (
        "topics create orders bills --partitions 2",
        "topics create orders",
        "topics create moved --config retention.ms=soon",
    ),
    "produce": ("produce orders -K : IN one:1 two:2", "produce nowhere IN x"),
    "consume": (
        "consume events -p 0 --exit -o beginning",
        "consume events -p 0 --exit -o beginning --long",
        "consume events -p 0 --exit -o beginning --json",
    ),
    "topics list": ("topics list", "topics list --json"),
    "topics alter": ("topics alter bills --config retention.ms=60000", "topics alter bills --partitions 1"),
    "topics describe": ("topics describe events bills", "topics describe nowhere"),
    "topics copy": ("topics copy orders copied",),
    "topics elect-leaders": ("topics elect-leaders --all-topics",),
    "topics reassign": ("topics reassign events:0=0", "topics reassign events:0=7"),
    "topics state": ("topics state orders",),
    "configs alter": (
        "configs alter --topic orders --set max.message.bytes=1000",
        "configs alter --topic orders --set no.such.config=1",
    ),
    "configs describe": (
        "configs describe --topic orders",
        "configs describe --broker 0 --name log.retention.ms --documentation --all",
    ),
    "groups list": ("groups list",),
    "groups describe": (
        "groups describe readers",
        "groups describe readers --members",
        "groups describe nobody",
    ),
    "groups reset-offsets": (
        "groups reset-offsets readers --topic events --to-earliest",
        "groups reset-offsets readers --topic events --to-latest --execute",
    ),
    "groups delete": ("groups delete readers --yes", "groups delete nobody --yes"),
    "quotas alter": (
        "quotas alter --entity-type users --entity-name alice --set producer_byte_rate=1000",
        "quotas alter --entity-type users --entity-name alice --set speed=1",
    ),
    "quotas describe": ("quotas describe",),
    "transactions list": ("transactions list",),
    "transactions describe": ("transactions describe payments", "transactions describe nobody"),
    "transactions producers": ("transactions producers events",),
    "transactions find-hanging": ("transactions find-hanging",),
    "transactions abort": ("transactions abort bills:0 --producer-id 7 --yes",),
    "users set-password": ("users set-password alice --password-file secret.txt",),
    "users list": ("users list",),
    "users delete": ("users delete alice --yes", "users delete nobody --yes"),
    "users bootstrap": ("users bootstrap admin --password-file secret.txt",),
    "acls add": (
        "acls add --topic events --allow-principal User:alice --operation Read",
        "acls add --topic events",
    ),
    "acls list": ("acls list",),
    "acls remove": ("acls remove --topic events --yes",),
    "cluster describe": ("cluster describe", "cluster describe --features"),
    "features list": ("features list",),
    "features set": ("features set group.version=0 --downgrade safe --validate-only", "features set none=1"),
    "topics delete": ("topics delete bills --yes", "topics delete bills --yes"),
    "shell": ("shell IN topics list\ntopics describe nowhere",),
    "config": ("config",),
    "redis-acl": ("redis-acl --user broker",),
    "doctor": ("doctor",),
    "apis": ("apis",),
    "serve": ("serve --workers many", "serve --set num.partitions=0", "serve --config nowhere.toml"),
    "reload": ("reload --pid 1",),
}
AT_BROKER = {
    *("topics", "produce", "consume", "configs", "groups", "quotas", "transactions", "users", "acls"),
    *("cluster", "features", "shell"),
}
AT_REDIS = {"topics state", "users bootstrap", "doctor"}


@pytest.fixture(scope="module")
def broker(redis_server: str) -> Iterator[InProcessBroker]:
    with only_broker(redis_server, SETTINGS | {"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture(scope="module")
def transcripts(broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the scenario on a broker that has a topic with records, a group and an open transaction."""
    directory = tmp_path_factory.mktemp("golden")
    (directory / "secret.txt").write_text("secret\n")
    commands.run("topics", "create", "events", "--partitions", "2", "-b", broker.bootstrap)
    for key, value in (("a", "first"), ("b", "second"), ("c", None)):
        record = {"key": key, "value": value, "partition": 0, "timestamp": NEW_YEAR_MS}
        produce(broker.bootstrap, "events", record | {"headers": [("trace", b"7")]})
    commands.commit(broker, "readers", "events", 1, 0)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "payments"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("events", b"open", partition=1, timestamp=NEW_YEAR_MS)
    producer.flush(30)
    made = {}
    for name, lines in SCENARIO.items():
        flags = ["-b", broker.bootstrap] if name.split()[0] in AT_BROKER and name not in AT_REDIS else []
        flags += ["--redis-url", broker.redis_url] if name in AT_REDIS else []
        made[name] = transcript_of(name, lines, directory, *flags)
    producer.abort_transaction(30)
    return made


@pytest.mark.parametrize("name", SCENARIO)
def test_a_command_prints_its_transcript(transcripts: dict[str, str], name: str) -> None:
    check_transcript(name, transcripts[name])


def test_each_command_has_a_transcript() -> None:
    of_lake = {name for name in names() if name.startswith("lake ")}
    assert names() - of_lake == SCENARIO.keys()
    assert {file.stem for file in GOLDEN.glob("*.txt")} == {name.replace(" ", "-") for name in names()}
