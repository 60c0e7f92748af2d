"""What `produce` and `consume` need of aiokafka, the client that carries their records: its errors, in Korvet's words.

Knows aiokafka's errors and its log; nothing of records.

How far a command has come, on stderr while a terminal shows it: records, bytes, and how fast.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

import click

from korvet.errors import ErrorCode


@contextlib.contextmanager
def failures_of_client_told() -> Iterator[None]:
    """Make one line and exit code 1 of what fails with the client; what it logs beside is not printed."""
    from aiokafka.errors import (  # noqa: PLC0415 - other commands start without it
        BrokerResponseError,
        KafkaError,
        kafka_errors,
    )

    # Those of later versions of the protocol it would call unknown, all alike.
    for code in ErrorCode:
        if code not in kafka_errors:
            kafka_errors[code] = type(code.name, (BrokerResponseError,), {"errno": int(code)})
    log = logging.getLogger("aiokafka")
    # It logs what it tries again, and what it raises besides: neither is for whoever reads the records.
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.propagate = False
    try:
        yield
    except KafkaError as error:
        raise click.ClickException(told(error)) from error


def told(error: BaseException) -> str:
    """Return an error by its name in Kafka's protocol, or as the client tells it where it is none of a broker's."""
    rest = ", ".join(str(each) for each in error.args)
    code = getattr(error, "errno", None)
    if not isinstance(code, int) or code not in ErrorCode._value2member_map_:
        return rest or type(error).__name__
    name = ErrorCode(code).name
    return f"{name}: {rest}" if rest else name


def addresses(bootstrap_server: str) -> list[str]:
    """Return the brokers of a flag that was looked at already, each with its port, as aiokafka takes them."""
    from korvet.admin.client import address_of  # noqa: PLC0415 - other commands start without it

    found = [address_of(each.strip()) for each in bootstrap_server.split(",") if each.strip()]
    return [
        f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in found
    ]


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
