"""`--command-config`: commands at a listener with a login, and what they say when they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import done, done_as_json, failed, korvet_process, refused, run
from tests.support.broker import Broker, steady_broker
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client

PASSWORD = "the-password-of-alice-in-this-test"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with steady_broker(tmp_path_factory.mktemp("login"), settings=SETTINGS, listen=(), workers=1) as running:
        with Client(running.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD)
        yield running


@pytest.fixture
def secured(broker: Broker, tmp_path: Path) -> list[str]:
    """Return the flags of alice."""
    return flags(broker, tmp_path)


def flags(broker: Broker, directory: Path, password: str = PASSWORD) -> list[str]:
    host, port = broker.at("SASL_PLAINTEXT")
    file = directory / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="alice" password="{password}";\n'
    )
    return ["-b", f"{host}:{port}", "--command-config", str(file)]


def completions(line: str) -> list[str]:
    """Return what zsh would offer for the last word of a line."""
    words = {"_KORVET_COMPLETE": "zsh_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return korvet_process(environ=words).stdout.split()


def test_topics_records_and_groups_are_used_with_a_login(secured: list[str]) -> None:
    done(run("topics", "create", "orders", "--partitions", "2", *secured))
    assert [each["topic"] for each in done_as_json("topics", "list", *secured)] == ["orders"]
    done(run("produce", "orders", *secured, given=b"one\ntwo\n"))
    assert sorted(done(run("consume", "orders", "--exit", *secured)).split()) == [b"one", b"two"]
    member = run("consume", "orders", "--group", "readers", "--offset", "beginning", "--exit", *secured)
    assert sorted(done(member).split()) == [b"one", b"two"]
    assert [each["group"] for each in done_as_json("groups", "list", *secured)] == ["readers"]
    printed = done(korvet_process("shell", *secured, given="topics list\ngroups list\n"))
    assert "orders" in printed
    assert "readers" in printed
    assert "orders" in completions(f"korvet topics describe {' '.join(secured)} ord")
    assert "readers" in completions(f"korvet groups describe {' '.join(secured)} rea")


COMMANDS = [("topics", "list"), ("produce", "orders"), ("consume", "orders"), ("groups", "list")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_password_ends_a_command_at_once_with_one_line(
    broker: Broker, tmp_path: Path, command: list[str]
) -> None:
    wrong = "a-wrong-password-of-this-test"
    said = failed(run(*command, *flags(broker, tmp_path, wrong)))
    assert said.startswith("Error: 127.0.0.1:")
    assert "Authentication failed" in said
    # One that retries says so.
    assert said.count("\n") == 1
    assert wrong not in said


def test_a_command_without_a_login_says_that_it_needs_one(secured: list[str]) -> None:
    said = failed(run("topics", "list", *secured[:2]))
    assert said.count("\n") == 1
    assert "requires a login: security.protocol has to be SASL_PLAINTEXT" in said


def test_a_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    assert "No such file" in refused("topics", "list", "--command-config", str(file))
    file.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={PASSWORD}\n")
    said = refused("topics", "list", "--command-config", str(file))
    assert "sasl.jaas.config must be" in said
    assert PASSWORD not in said
