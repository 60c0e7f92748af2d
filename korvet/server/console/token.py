"""The secret that changes by the console take, in a file that is read each time: a new one holds at once."""

from __future__ import annotations

from pathlib import Path

TOKEN_CHARS_MIN = 16
_TOKEN_BYTES_MAX = 4096


class NoTokenError(Exception):
    """The file holds none; the message says why."""


def read_token(path: Path) -> bytes:
    """Return the token, without the blanks around it. Raises NoTokenError."""
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise NoTokenError(error.strerror or str(error)) from None
    if not TOKEN_CHARS_MIN <= len(token) <= _TOKEN_BYTES_MAX:
        message = f"{len(token)} bytes are no token: it has {TOKEN_CHARS_MIN} to {_TOKEN_BYTES_MAX}"
        raise NoTokenError(message)
    return token
