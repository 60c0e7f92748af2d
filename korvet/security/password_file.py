"""The file of `sasl.plain.users.file`: users and their passwords for PLAIN, as Kafka has them in its JAAS file.

    alice = "alice-secret"
    "bob@example.com" = "bob-secret"

It is TOML. Only the broker's user and its group may read it. No error says what stands in it.
"""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

from korvet.errors import ConfigError

FILE_BYTES_MAX = 1024 * 1024


def read_passwords(path: Path) -> dict[str, str]:
    """Return the passwords by user; raises ConfigError, one line."""
    where = f"sasl.plain.users.file = {path}"
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            if mode & stat.S_IRWXO:
                raise ConfigError(f"{where}: every user of this machine may use it: chmod o-rwx {path}")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{where}: more than {FILE_BYTES_MAX} bytes")
    try:
        users = tomllib.loads(data.decode())
    except ValueError:
        # Without its cause, which may quote the file.
        raise ConfigError(f'{where}: it must be TOML, of lines such as alice = "alice-secret"') from None
    if not all(name and isinstance(password, str) and password for name, password in users.items()):
        raise ConfigError(f'{where}: each line must be NAME = "PASSWORD", neither of them empty')
    return users
