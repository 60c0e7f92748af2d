"""A wire client that logs in by SASL, message by message."""

from __future__ import annotations

from typing import Any, Self

from korvet.protocol.types import ScramMechanism
from korvet.security.scram import salt_password
from tests.handlers import apis
from tests.support.scram_client import ScramClient
from tests.support.topic_client import Client
from tests.support.wire_client import frame

_ITERATIONS = 4096


class SaslClient(Client):
    """A connection to a listener with SASL."""

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(apis.SaslHandshake, version, mechanism=mechanism)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.ask(apis.SaslAuthenticate, version, auth_bytes=token)

    def token(self, token: bytes) -> bytes:
        """Send a token as after version 0 of the handshake, and return the answer."""
        self.send_bytes(frame(token))
        return self.receive_frame()

    def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Any:
        """Log in, and return the last answer, whatever it is."""
        assert self.handshake(mechanism).error_code == 0
        return self.exchange(user, password, mechanism)

    def exchange(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Any:
        if mechanism == "PLAIN":
            return self.authenticate(f"\0{user}\0{password}".encode())
        client = ScramClient(ScramMechanism[mechanism.replace("-", "_")], user, password)
        first = self.authenticate(client.first())
        assert first.error_code == 0
        last = self.authenticate(client.final(first.auth_bytes))
        if last.error_code == 0:
            client.check(last.auth_bytes)
        return last

    def authenticated(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Self:
        answer = self.log_in(user, password, mechanism)
        assert answer.error_code == 0, answer.error_message
        return self


def set_password(admin: Client, user: str, password: str, *mechanisms: ScramMechanism) -> None:
    """Give a user a password, for SCRAM-SHA-256 if nothing else is said."""
    for mechanism in mechanisms or (ScramMechanism.SCRAM_SHA_256,):
        salt = b"a salt of a test"
        salted = salt_password(mechanism, password, salt, _ITERATIONS)
        change = {
            "name": user,
            "mechanism": mechanism,
            "iterations": _ITERATIONS,
            "salt": salt,
            "salted_password": salted,
        }
        _alter(admin, upsertions=[change])


def delete_password(admin: Client, user: str) -> None:
    """Take the password for SCRAM-SHA-256 away."""
    _alter(admin, deletions=[{"name": user, "mechanism": ScramMechanism.SCRAM_SHA_256}])


def _alter(admin: Client, **changes: Any) -> None:
    [result] = admin.ask(apis.AlterUserScramCredentials, 0, **changes).results
    assert result.error_code == 0, result.error_message
