"""PLAIN: what it costs to be refused shows nobody which users there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.protocol.types import ScramMechanism
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.credentials import UserCredentials
from korvet.security.plain import PlainUsers
from korvet.security.scram import ScramCredential


class CountingCredentials(UserCredentials):
    """Counts for how many logins a password was salted."""

    salted = 0

    def get_or_stand_in(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        self.salted += 1
        return super().get_or_stand_in(user, mechanism)


@pytest.mark.parametrize(
    ("user", "password", "fits", "salted"),
    [
        ("carol", "the-password-of-carol", True, 0),
        ("carol", "another", False, 1),
        ("nobody", "another", False, 1),
    ],
)
def test_a_wrong_password_of_the_file_takes_as_long_as_an_unknown_user(
    redis: Redis, tmp_path: Path, *, user: str, password: str, fits: bool, salted: int
) -> None:
    path = tmp_path / "users.toml"
    path.touch(0o600)
    path.write_text('carol = "the-password-of-carol"\n')
    stored = CountingCredentials(redis, Keys("korvet"))
    assert PlainUsers(str(path), stored).is_password(user, password) is fits
    assert stored.salted == salted


def test_the_file_is_read_again_when_it_has_changed(
    redis: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users.toml"
    path.touch(0o600)
    users = PlainUsers(str(path), UserCredentials(redis, Keys("korvet")))
    for text, mode, fits in (
        ('carol = "x"', 0o600, True),
        ('dave = "x"', 0o600, False),
        ('carol = "x"', 0o600, True),
        ('carol = "x"', 0o604, False),
    ):
        path.write_text(text)
        path.chmod(mode)
        assert users.is_password("carol", "x") is fits
    assert "no user of the file may log in" in caplog.text
