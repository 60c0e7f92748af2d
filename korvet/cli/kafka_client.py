"""What `produce` and `consume` need of aiokafka, the client that carries their records: its errors, in Korvet's words.

Knows aiokafka's errors and its log; nothing of records.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click


@contextlib.contextmanager
def failures_of_client_told() -> Iterator[None]:
    """Make one line and exit code 1 of what fails with the client; what it logs beside is not printed."""
    from aiokafka.errors import KafkaError  # noqa: PLC0415 - other commands start without it

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
    """Return an error as Kafka names it, with what is known besides."""
    name = getattr(error, "message", None)
    rest = ", ".join(str(each) for each in error.args) or getattr(error, "description", "")
    if not name:
        return rest or type(error).__name__
    return f"{name}: {rest}" if rest else str(name)


def addresses(bootstrap_server: str) -> list[str]:
    """Return the brokers of a flag that was looked at already, each with its port, as aiokafka takes them."""
    from korvet.admin.client import address_of  # noqa: PLC0415 - other commands start without it

    found = [address_of(each.strip()) for each in bootstrap_server.split(",") if each.strip()]
    return [
        f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in found
    ]
