"""How far a command has come, on stderr while a terminal shows it: records, bytes, and how fast."""

from __future__ import annotations

import sys
import time

_SECONDS_BETWEEN = 0.5
_KILO = 1000
_UNITS = ("kB", "MB", "GB", "TB")


class Progress:
    """A line that is written over as it grows; silent where `shown` is False. Call `end` at the end."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._records = self._bytes = 0
        self._began = time.monotonic()
        self._next = self._began + _SECONDS_BETWEEN

    def add(self, records: int, size: int) -> None:
        """Count more records of so many bytes together."""
        self._records += records
        self._bytes += size
        if self._shown and time.monotonic() >= self._next:
            self._write("")
            self._next = time.monotonic() + _SECONDS_BETWEEN

    def end(self) -> None:
        """Leave the last state on a line of its own."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        seconds = max(time.monotonic() - self._began, 0.001)
        rate = round(self._records / seconds)
        text = f"{self._records:,} records, {amount(self._bytes)}, {rate:,} records/s"
        sys.stderr.write(f"\r{text}\x1b[K{end}")
        sys.stderr.flush()


def amount(size: float) -> str:
    """Return a number of bytes for people: 12 B, 3.4 kB, 5.6 MB."""
    if size < _KILO:
        return f"{size:.0f} B"
    unit = -1
    while size >= _KILO and unit < len(_UNITS) - 1:
        size /= _KILO
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}"
