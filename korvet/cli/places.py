"""How topics, partitions, brokers and settings are written on a command line; what is written wrong is a UsageError."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from korvet.admin import AdminClient, TopicPartition

_TOPIC = re.compile(r"(?P<name>[^:]+)(?::(?P<indexes>\d+(?:,\d+)*))?", re.ASCII)
_NUMBERS = re.compile(r"\d+(?:[,:]\d+)*", re.ASCII)
_INDEX_MAX = 2**31 - 1


def topics(flag: str, texts: Sequence[str]) -> dict[str, list[int]]:
    """Read `orders` and `orders:0,1`: topic -> partitions, none of them meaning all."""
    found: dict[str, list[int]] = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.UsageError(f"{flag} takes orders or orders:0,1, not {text!r}")
        indexes = [int(each) for each in (match["indexes"] or "").split(",") if each]
        if any(index > _INDEX_MAX for index in indexes):
            raise click.UsageError(f"{flag} {text} names a partition that no topic can have")
        if match["name"] in found:
            raise click.UsageError(f"{flag} names {match['name']} twice")
        found[match["name"]] = indexes
    return found


def partitions(admin: AdminClient, wished: dict[str, list[int]]) -> list[TopicPartition]:
    """Return the partitions of `topics`, every one of a topic where none is named; raises AdminError."""
    from korvet.admin import TopicPartition  # noqa: PLC0415 - other commands start without it

    topology = admin.topology(wished)
    found = []
    for topic, indexes in wished.items():
        if topic in topology.failed and not indexes:
            raise topology.failed[topic]
        found += [TopicPartition(topic, index) for index in indexes or topology.partitions[topic]]
    return found


def numbers(what: str, text: str) -> list[int]:
    """Read brokers, with commas or colons between."""
    if not _NUMBERS.fullmatch(text) or any(int(each) > _INDEX_MAX for each in re.split("[,:]", text)):
        raise click.UsageError(f"{what} takes ids of brokers, as 0,1, not {text!r}")
    return [int(each) for each in re.split("[,:]", text)]


def settings(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE of settings, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {text!r}")
        if name in found:
            raise click.UsageError(f"{flag} names {name} twice")
        found[name] = value
    return found
