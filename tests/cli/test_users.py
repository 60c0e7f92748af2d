"""`korvet users`: who logs in by SCRAM, and the first user where nobody can log in yet."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pexpect
import pytest

from tests.cli.commands import at_broker, done, done_as_json, failed, korvet_process, table
from tests.support import redis_servers
from tests.support.broker import korvet_broker
from tests.support.in_process import InProcessBroker
from tests.support.sasl_client import SaslClient

pytestmark = pytest.mark.slow

users = partial(at_broker, "users")
PASSWORD = "a password of this test"
SASL = ("--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0")
MAP = ("--set", "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,ADMIN:PLAINTEXT")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\nnot part of it\n")
    return str(path)


def bootstrap(*arguments: str, code: int = 0) -> str:
    """Run the command in a process of its own; returns what it writes."""
    result = korvet_process("users", "bootstrap", *arguments)
    return failed(result, code) if code else str(done(result))


def listed(broker: InProcessBroker) -> list[list[str]]:
    return [row for row in table(done(users(broker, "list"))) if row[0].startswith("name-")]


def test_a_user_is_created_listed_and_deleted(broker: InProcessBroker, name: str, file: str) -> None:
    said = done(users(broker, "set-password", name, "--password-file", file))
    assert said == f"set the password of {name} (SCRAM-SHA-256, SCRAM-SHA-512)\n"
    other = ("-m", "SCRAM-SHA-512", "--iterations", "8192", "--password-file", file)
    said = done(users(broker, "set-password", name, *other))
    assert said == f"set the password of {name} (SCRAM-SHA-512)\n"
    assert listed(broker) == [[name, "SCRAM-SHA-256", "4096"], [name, "SCRAM-SHA-512", "8192"]]
    rows = done_as_json("users", "list", "-b", broker.bootstrap)
    assert {"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 8192} in rows
    assert "nothing is deleted" in failed(users(broker, "delete", name))
    assert done(users(broker, "delete", name, "--yes", "-m", "SCRAM-SHA-256")).startswith("deleted")
    assert listed(broker) == [[name, "SCRAM-SHA-512", "8192"]]
    done(users(broker, "delete", name, "--yes"))
    assert listed(broker) == []
    assert "has no such credential" in failed(users(broker, "delete", name, "--yes"))


def test_a_password_comes_from_standard_input(broker: InProcessBroker, name: str) -> None:
    arguments = ("users", "set-password", name, "-b", broker.bootstrap, "--password-file", "-")
    done(korvet_process(*arguments, given=PASSWORD))
    assert len(listed(broker)) == 2
    done(users(broker, "delete", name, "--yes"))
    assert "the password is empty" in failed(
        users(broker, "set-password", name, "--password-file", "/dev/null"), 2
    )
    assert "give --password-file" in failed(users(broker, "set-password", name), 2)


def test_a_terminal_asks_for_a_password_twice_and_does_not_show_it(
    broker: InProcessBroker, name: str
) -> None:
    arguments = ["-m", "korvet", "users", "set-password", name, "-b", broker.bootstrap]
    with pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=60) as terminal:
        for prompt in ("Password: ", "Repeat for confirmation: "):
            terminal.expect(prompt)
            terminal.sendline(PASSWORD)
        terminal.expect("set the password of")
        terminal.expect(pexpect.EOF)
        assert PASSWORD not in terminal.before
    assert len(listed(broker)) == 2
    done(users(broker, "delete", name, "--yes"))


@pytest.mark.embedded
def test_the_first_user_is_made_before_the_broker_runs_and_while_it_does(tmp_path: Path, file: str) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    made = bootstrap("admin", *data, "--password-file", file)
    assert made == "created admin (SCRAM-SHA-256, SCRAM-SHA-512)\n"
    with korvet_broker(tmp_path, *SASL, *MAP, listen=(), workers=1) as broker:
        with SaslClient(broker.at("SASL_PLAINTEXT")) as client:
            client.authenticated("admin", PASSWORD)
        bootstrap("second", *data, "--password-file", file, "-m", "SCRAM-SHA-512")
        with SaslClient(broker.at("SASL_PLAINTEXT")) as client:
            client.authenticated("second", PASSWORD, "SCRAM-SHA-512")
        assert PASSWORD not in broker.log()


def test_the_first_user_is_made_in_a_redis(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("another password")
    with redis_servers.server() as url:
        at = ("--redis-url", url, "--password-file", file)
        bootstrap("admin", *at)
        assert "admin exists: --replace gives it another password" in bootstrap("admin", *at, code=1)
        bootstrap("admin", "--replace", *at[:2], "--password-file", str(other))
        with (
            korvet_broker(tmp_path, "--redis-url", url, *SASL, *MAP, workers=1, listen=()) as broker,
            SaslClient(broker.at("SASL_PLAINTEXT")) as client,
        ):
            client.authenticated("admin", "another password")


def test_a_redis_that_is_away_is_said_in_one_line(file: str) -> None:
    said = bootstrap("admin", "--redis-url", "redis://127.0.0.1:1", "--password-file", file, code=1)
    assert said.startswith("Error: ")
    assert len(said.splitlines()) == 1
