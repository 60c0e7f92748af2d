"""What `produce` and `consume` need of aiokafka, the client that carries their records: its errors, in Korvet's words.

Knows aiokafka's errors and its log; nothing of records.
"""

from __future__ import annotations

import contextlib
import logging
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
