"""The file with the console's token: that there is one, and that it is nobody else's to read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from korvet.config import Settings
from korvet.server.console.token import TOKEN_CHARS_MIN, NoTokenError, read_token
from korvet.server.doctor.finding import Finding, ok, warning

_WHAT = "console.token.file"


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is true of the file, if there is to be one."""
    if not (settings.console_token_file and settings.console_enable and settings.ops_listen):
        return
    path = Path(settings.console_token_file)
    try:
        read_token(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except (NoTokenError, OSError) as problem:
        yield warning(
            _WHAT,
            f"{path}: {problem}; the console makes no changes",
            f"write a secret of {TOKEN_CHARS_MIN} characters or more to it, which the broker's user can read",
        )
        return
    if mode & stat.S_IROTH:
        yield warning(_WHAT, f"{path}: every user of this machine can read it", f"chmod o-rwx {path}")
        return
    yield ok(_WHAT, f"{path} holds a token")
