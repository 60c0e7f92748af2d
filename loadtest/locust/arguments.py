"""The flags that this load adds to locust's own, and which of them the form of its page has too.

Knows locust's parser. Each value ends up in `environment.parsed_options`, in a worker of locust as well.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadtest.locust.operations import FORMATS
from loadtest.locust.shapes import SHAPES

if TYPE_CHECKING:
    # At run time it is there already, in the process that locust has patched; tests read flags in another one.
    from locust.argument_parser import LocustArgumentParser

MIX = "producer=4,consumer=3,reader=1,group=3,admin=1"
"""Shares of the users by default."""

RUN_SECONDS = 60
"""How long a run is that nobody gave a --run-time (seconds)."""


class Flag(NamedTuple):
    """One flag: its default says what type it has, `on_page` whether it can be another one in the next run."""

    name: str
    default: str | int | float | bool
    help: str
    choices: Sequence[str] | None = None
    on_page: bool = True


FLAGS = (
    Flag("--shape", "steady", "how many users there are when, of --users in --run-time", list(SHAPES)),
    Flag("--mix", MIX, "shares of the users"),
    Flag("--rate", 100, "records a second of each producer"),
    Flag("--message-size", 200, "bytes of a record's value, 16 at least"),
    Flag("--linger-ms", 5, "how long producers wait for more records to send together, librdkafka's default"),
    Flag(
        "--delivery-timeout", 30.0, "seconds after which a record that was not acknowledged counts as failed"
    ),
    Flag("--topics", 4, "how many topics there are"),
    Flag("--partitions", 4, "partitions of each topic"),
    Flag("--formats", ",".join(FORMATS), 'storage.format of topics, in turns; "" leaves it to the broker'),
    Flag("--groups", 2, "how many groups the users of groups are in"),
    Flag("--prefix", "loadtest", "what names of topics and groups begin with", on_page=False),
    Flag(
        "--ledger",
        "",
        "directory for what producers know of their records, for the check of sequences",
        on_page=False,
    ),
    Flag("--thresholds", "", "TOML file that says what is too slow", on_page=False),
    Flag("--keep-topics", default=False, help="leave topics and groups where they are", on_page=False),
)


def add(parser: LocustArgumentParser) -> None:
    """Add the flags to a parser. They are no group of their own, for the page shows none of a group."""
    for flag in FLAGS:
        if isinstance(flag.default, bool):
            parser.add_argument(
                flag.name, action="store_true", help=flag.help, include_in_web_ui=flag.on_page
            )
        else:
            parser.add_argument(
                flag.name,
                type=type(flag.default),
                default=flag.default,
                choices=flag.choices,
                help=f"{flag.help} (default: {flag.default or 'none'})",
                include_in_web_ui=flag.on_page,
            )


def check(options: Namespace) -> None:
    """Raise ValueError where a number is too small for a load."""
    for name in ("topics", "partitions", "groups"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is {getattr(options, name)}, at least one is needed")
    for name in ("rate", "delivery_timeout"):
        if getattr(options, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}, more than 0 is needed")


def mix(text: str, known: Sequence[str]) -> dict[str, int]:
    """Return the shares in a text like `producer=4,admin=1`; users that it does not name have none.

    Raises ValueError, which says what is wrong.
    """
    shares = dict.fromkeys(known, 0)
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in shares:
            raise ValueError(f"--mix: {name!r} is none of {', '.join(known)}")
        if not number.isdecimal():
            raise ValueError(f"--mix: {part.strip()!r} gives no number")
        shares[name] = int(number)
    if not any(shares.values()):
        raise ValueError("--mix: no users are left")
    return shares
