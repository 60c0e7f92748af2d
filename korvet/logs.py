"""Logs: one line per event on stderr, as text or JSON, whatever a peer put into its fields.

A line has time (UTC), level, process, event and fields; control characters are escaped, long values cut, passwords of
URLs masked. Python's own logging lies beneath, so that the lines of other packages come out in the same form.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from korvet.config.settings import Settings
from korvet.config.values import key_values, without_secrets

_FIELDS = "korvet_fields"  # the attribute of a log record that carries an event's fields
_VALUE_CHARS_MAX = 1000  # a client id may be 32 KiB of a peer's choice; a line stays a line
_TRACEBACK_CHARS_MAX = 20_000
_PLAIN = re.compile(r"[^\s\"'=\\{}\[\],]+")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

ROOT = "root"
"""Name of the logger above all others, whose level is `log.level`."""

_named: set[str] = set()
"""The loggers of this process that have a level of their own."""


class Log:
    """Writes the events of one part: `Log(__name__).info("closed", peer="1.2.3.4:5", reason="idle")`."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        """Write what only a search for a fault needs."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Write what happened as it should."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Write what an operator should look at some time."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Write what did not work and will not by itself."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """Write a fault of Korvet's own, with the traceback of the exception in hand in the same line."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def _write(
        self, level: int, event: str, fields: Mapping[str, object], *, traceback: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=traceback)


def configure(settings: Settings, process: str) -> None:
    """Send this process's log lines to stderr; `process` names it in each line (`supervisor`, `worker-1`).

    Called again in every forked child, and after a reload: the last call holds.
    """
    handler = _Stderr()
    handler.setFormatter(_Lines(process, as_json=settings.log_format == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(settings)
    logging.captureWarnings(capture=True)


def set_level(settings: Settings) -> None:
    """Write lines from other levels on; the rest stays as it was configured."""
    for name in _named:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _named.clear()
    # After those: by the name "root" it may have been one of them.
    logging.getLogger().setLevel(_LEVELS[settings.log_level])
    for name, level in key_values(settings.log_levels).items():
        logging.getLogger(name).setLevel(_LEVELS[level])
        _named.add(name)


def levels(settings: Settings) -> dict[str, str]:
    """Return the level of each logger under these settings, by name: those of this process, and Korvet's packages."""
    own = key_values(settings.log_levels)
    result = {ROOT: own.get(ROOT, settings.log_level)}
    # A parent comes before its loggers.
    for name in sorted({*logging.getLogger().manager.loggerDict, *_packages(), *own} - {ROOT}):
        result[name] = own.get(name) or result.get(name.rpartition(".")[0], result[ROOT])
    return result


@cache
def _packages() -> list[str]:
    """Return the names of Korvet's packages: other processes of a broker have loggers that this one has not."""
    package = Path(__file__).parent
    folders = [file.parent.relative_to(package.parent) for file in package.rglob("__init__.py")]
    return [".".join(folder.parts) for folder in folders]


class _Stderr(logging.Handler):
    """Writes to what stderr is now, each line in one piece: several processes share it."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        # A closed or full stderr costs the line only: there is nowhere left to report it.
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _Lines(logging.Formatter):
    """One line for each record, of safe values.

    As text: `2026-01-01T12:00:00.123Z INFO    worker-1 connection closed peer=1.2.3.4:5 reason="too slow"`. As JSON:
    an object with the fields beside `time`, `level`, `process`, `logger` and `event`.
    """

    def __init__(self, process: str, *, as_json: bool) -> None:
        super().__init__()
        self._process, self._as_json = process, as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: _value(value) for name, value in getattr(record, _FIELDS, {}).items()}
        if record.exc_info and record.exc_info[0] is not None:
            traceback = without_secrets(self.formatException(record.exc_info))
            fields["traceback"] = traceback[-_TRACEBACK_CHARS_MAX:]
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        moment = f"{seconds}.{int(record.msecs):03d}Z"
        event = _value(record.getMessage().strip())
        if self._as_json:
            line = {
                "time": moment,
                "level": record.levelname.lower(),
                "process": self._process,
                "logger": record.name,
                "event": event,
            }
            # A field cannot pass itself off as one of these.
            return json.dumps(line | fields | line, allow_nan=False)
        text = "".join(f" {name}={_text(value)}" for name, value in fields.items())
        return f"{moment} {record.levelname:<7} {self._process} {_escaped(str(event))}{text}"


def _value(value: object) -> str | int | float | bool | None:
    """Keep what JSON has; write all else as a text of bounded length without secrets."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[: _VALUE_CHARS_MAX + 1]).decode("utf-8", "backslashreplace")
    text = without_secrets(str(value))
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}..."


def _text(value: str | float | bool | None) -> str:  # noqa: FBT001 -- any value of a field
    """Write a field's value so that its end is seen: in quotes unless it is one plain word."""
    if not isinstance(value, str):
        return json.dumps(value)
    return value if value.isprintable() and _PLAIN.fullmatch(value) else json.dumps(value)


def _escaped(text: str) -> str:
    """Escape what would break the line or drive a terminal; leave all that can be read."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


PAUSE_SECONDS = 10.0
"""Between two lines of a kind: a thousand consumers that try again are one event, not a thousand."""


class RateLimitedLogger:
    """Lines of one log that may come with every request or peer: of each kind `burst` in `pause_seconds`.

    The next line of a kind has the number of those that were left out.
    """

    def __init__(
        self,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        *,
        burst: int = 1,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._log, self._clock, self._burst, self._pause_seconds = log, clock, burst, pause_seconds
        # Of each kind: when its present pause began, and how many lines were written in it.
        self._written: dict[str, tuple[float, int]] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, event: str, /, **fields: object) -> None:
        """Write a line, unless there were enough of this `kind` a moment ago; kinds must be few."""
        self._write(self._log.warning, kind, event, fields)

    def error(self, kind: str, event: str, /, **fields: object) -> None:
        """Write a line of level error, as `warning` does."""
        self._write(self._log.error, kind, event, fields)

    def info(self, kind: str, event: str, /, **fields: object) -> None:
        """Write a line of level info, as `warning` does."""
        self._write(self._log.info, kind, event, fields)

    def _write(self, write: Callable[..., None], kind: str, event: str, fields: dict[str, object]) -> None:
        now = self._clock()
        began, lines = self._written.get(kind, (now, 0))
        if now - began >= self._pause_seconds:
            began, lines = now, 0
        if lines >= self._burst:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._written[kind] = began, lines + 1
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            fields["left_out_before"] = left_out
        write(event, **fields)


def open_closed_streams() -> None:
    """Open each standard stream that the caller of this process has closed, for which Python has None.

    Else the next file or socket would get its descriptor, and what is meant for a terminal would go to a broker.
    Reading from stdin and writing to stdout then fail with EBADF, as in other languages: an input that is closed is no
    empty one, and records that nobody gets do not count as read. What goes to stderr is lost.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def discard_stdout() -> None:
    """Discard what could not be written to stdout: its buffer keeps it, and each later flush would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
