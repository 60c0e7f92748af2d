"""PLAIN (RFC 4616): the client sends its name and password, in clear unless the listener has TLS.

A user of `sasl.plain.users.file` has the password that stands there. Every other one has that of its SCRAM credential,
of which nothing but the salted hash is stored: to salt the password it sent takes milliseconds, in a thread.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from gevent.threadpool import ThreadPool

from korvet.errors import AuthenticationError, ConfigError
from korvet.logs import Log, RateLimitedLogger
from korvet.protocol.types import ScramMechanism
from korvet.security.credentials import UserCredentials
from korvet.security.exchange import Exchange, another_authorization_id
from korvet.security.password_file import read_passwords
from korvet.security.scram import is_password

_log = RateLimitedLogger(Log(__name__))

_PASSWORD_BYTES_MAX = 4096


class PlainUsers:
    """The users of one worker who may log in by PLAIN on one listener."""

    def __init__(self, file: str, stored: UserCredentials) -> None:
        """`file` is read now if it is given, and again when it has changed."""
        self._file = Path(file) if file else None
        self._stored = stored
        self._passwords: dict[str, str] = {}
        self._read: object = None
        # One thread: however many clients try passwords, the rest of the machine is for those that are logged in.
        self._threads = ThreadPool(1)

    def is_password(self, user: str, password: str) -> bool:
        """Return whether this is the user's password; takes as long for a user that does not exist."""
        self._refresh()
        of_file = self._passwords.get(user)
        if of_file is not None and hmac.compare_digest(of_file.encode(), password.encode()):
            return True
        mechanism = next(
            (item for item in reversed(ScramMechanism) if item and self._stored.get(user, item)),
            ScramMechanism.SCRAM_SHA_512,
        )
        credential = self._stored.get_or_stand_in(user, mechanism)
        fits: bool = self._threads.apply(is_password, (mechanism, credential, password))
        # A wrong password of the file has taken as long: nobody learns by that who stands there.
        return fits and of_file is None

    def _refresh(self) -> None:
        """Read the file if it has changed; a file that cannot be used has no users."""
        if self._file is None:
            return
        try:
            result = self._file.stat()
            seen = (result.st_ino, result.st_mtime_ns, result.st_size, result.st_mode)
        except OSError:
            seen = None
        if seen is not None and seen == self._read:
            return
        self._passwords, self._read = {}, seen
        try:
            self._passwords = read_passwords(self._file)
        except ConfigError as error:
            _log.error("users", "no user of the file may log in", reason=str(error))


class PlainServer(Exchange):
    """An exchange of one message."""

    def __init__(self, users: PlainUsers) -> None:
        super().__init__()
        self._users = users

    def evaluate(self, token: bytes) -> bytes:
        """Return the empty answer to a message that is right; raises AuthenticationError."""
        try:
            authorization_id, user, password = token.decode().split("\0")
        except ValueError:  # another number of parts, or no UTF-8; from None, as it would show the password
            raise AuthenticationError("malformed message of PLAIN") from None
        if not user or not password:
            missing = "password" if user else "username"
            message = f"Authentication failed: {missing} not specified"
            raise AuthenticationError(f"no {missing}", message, user=user)
        if len(password.encode()) > _PASSWORD_BYTES_MAX or not self._users.is_password(user, password):
            message = "Authentication failed: Invalid username or password"
            raise AuthenticationError("unknown user or wrong password", message, user=user)
        if authorization_id not in {"", user}:
            raise another_authorization_id(user)
        self.user, self.complete = user, True
        return b""
