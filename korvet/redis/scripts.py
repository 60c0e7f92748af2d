"""The Lua scripts, read once at import: `get("log/trim")` is lua/log/trim.lua with its SHA-1.

Sources are passed on byte for byte, comments too, so that line numbers in Redis' error messages are those of the file;
only a line `-- @include shared/<name>` is replaced by that file, and `when_full` has a first line that says how Redis
is to run it. Files under lua/shared are parts, not scripts. An
include inside an include is refused: what a script costs Redis at every call must be readable from its own lines.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

_INCLUDE = re.compile(r"^-- @include (\S+)[ \t]*$", re.MULTILINE)
_NOT_FULL, _FULL = "local memory_is_full = false", "local memory_is_full = true"
_ALLOW_OOM = "#!lua flags=allow-oom\n"
_PART = re.compile(r"^shared/[a-z0-9_-]+$")


class Script(msgspec.Struct, frozen=True):
    """One script: `name` as "log/trim", `source` with its includes expanded, `sha` as EVALSHA takes it.

    `leased`: it takes the end of its sender's lease as one more argument, the last (lua/shared/lease.lua). `when_full`
    is the same for a Redis whose memory is full, if it may replace something then (lua/shared/memory_is_full.lua).
    """

    name: str
    source: str
    sha: str
    leased: bool = False
    when_full: Script | None = None


def folder() -> Path:
    """Return the scripts' directory: inside the package of an installation, else the repository's."""
    packaged = Path(__file__).parent.parent / "lua"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "lua"


def load(directory: Path) -> dict[str, Script]:
    """Read every script under `directory`; raises ValueError for an include that is unknown or nested."""
    loaded = {}
    for path in sorted(directory.rglob("*.lua")):
        name = path.relative_to(directory).with_suffix("").as_posix()
        if name.startswith("shared/"):
            continue
        text = path.read_text(encoding="utf-8")
        source = _expand(directory, name, text)
        parts = _INCLUDE.findall(text)
        leased = "shared/lease" in parts
        when_full = None
        if "shared/memory_is_full" in parts:
            full = _ALLOW_OOM + source.removeprefix("#!lua\n").replace(_NOT_FULL, _FULL, 1)
            when_full = Script(name, full, _sha(full), leased)
        loaded[name] = Script(name, source, _sha(source), leased, when_full)
    return loaded


def _sha(source: str) -> str:
    # A digest that names the content, as EVALSHA defines it; nothing secret hangs on it.
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def _expand(directory: Path, name: str, source: str) -> str:
    def part(match: re.Match[str]) -> str:
        included = match[1]
        path = directory / f"{included}.lua"
        if not _PART.match(included) or not path.is_file():
            msg = f"lua/{name}.lua includes {included!r}: there is no such file under lua/shared"
            raise ValueError(msg)
        text = path.read_text(encoding="utf-8")
        if _INCLUDE.search(text):
            msg = f"lua/{included}.lua, included by lua/{name}.lua, has an include of its own"
            raise ValueError(msg)
        return text.rstrip("\n")

    return _INCLUDE.sub(part, source)


_SCRIPTS = load(folder())


def get(name: str) -> Script:
    """Return a script by its name, such as "log/trim"; KeyError names the script that is missing."""
    return _SCRIPTS[name]


def all_scripts() -> tuple[Script, ...]:
    """Return all scripts in the order of their names, for SCRIPT LOAD at start."""
    return tuple(text for script in _SCRIPTS.values() for text in (script, script.when_full) if text)
