"""A machine's clock that a test sets: libfaketime, for programs that are started by `command`."""

from __future__ import annotations

from pathlib import Path


class Clock:
    """A clock that several programs share. Monotonic clocks are left alone."""

    def __init__(self, file: Path) -> None:
        """Keep the difference to the right time in a file."""
        self._file = file
        self.set(0)

    @property
    def command(self) -> list[str]:
        """Return what stands before the command of a program."""
        variables = {
            "LD_PRELOAD": _library(),
            "FAKETIME_TIMESTAMP_FILE": self._file,
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    def set(self, seconds: int) -> None:
        """Let it be so far ahead of the right time, a second from now at the latest."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._file)


def _library() -> Path:
    """Return libfaketime, which the dynamic linker puts before the C library's clock."""
    result = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
    assert result, "libfaketime is not there (on Debian or Ubuntu: apt-get install libfaketime)"
    return result[0]
