"""The file with users of PLAIN: who may read it, what stands in it, and errors that show nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.config.listeners import Listener
from korvet.config.sources import load
from korvet.config.values import Address
from korvet.errors import ConfigError
from korvet.security.password_file import FILE_BYTES_MAX, read_passwords
from korvet.server.finding import require
from korvet.server.supervisor.checks import sasl

SECRET = "secret-of-this-test"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    file.touch(0o600)
    return file


def test_users_and_their_passwords(path: Path) -> None:
    path.write_text('alice = "alice-secret"\n"bob@example.com" = "a b=c"\n')
    assert read_passwords(path) == {"alice": "alice-secret", "bob@example.com": "a b=c"}


def test_the_group_may_read_it_and_nobody_else(path: Path) -> None:
    path.write_text('alice = "x"\n')
    path.chmod(0o640)
    assert read_passwords(path) == {"alice": "x"}
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"chmod o-rwx"):
        read_passwords(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"alice {SECRET}", "it must be TOML"),
        (f'alice = "{SECRET}"\nalice = "{SECRET}"', "it must be TOML"),
        (f'KafkaServer {{\n  user_alice="{SECRET}";\n}};', "it must be TOML"),
        ("alice = 1", "neither of them empty"),
        ('alice = ""', "neither of them empty"),
        (f'"" = "{SECRET}"', "neither of them empty"),
        (f'[users]\nalice = "{SECRET}"', "neither of them empty"),
        ("x" * (FILE_BYTES_MAX + 1), "more than"),
    ],
)
def test_what_is_wrong_is_said_without_the_content(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        read_passwords(path)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_broker_does_not_start_without_users_that_it_needs(path: Path) -> None:
    listener = Listener("SASL_PLAINTEXT", Address("127.0.0.1", 9092))
    given = {
        "listeners": str(listener),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": str(path.with_name("absent")),
    }
    with pytest.raises(ConfigError, match=r"sasl.plain.users.file = .*absent: No such file or directory"):
        require(sasl(load(None, {}, given).settings, [listener]))
    require(sasl(load(None, {}, given | {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}).settings, [listener]))
    with pytest.raises(ConfigError, match=r"sasl.enabled.mechanisms names no mechanism"):
        require(sasl(load(None, {}, given | {"sasl.enabled.mechanisms": ""}).settings, [listener]))
