"""What an operator changes by the console: topics and their configs, what groups have committed, groups.

Knows what a body has to say for each, and what is asked of the broker. Nothing is done in part: each is one question
about one thing, but for offsets of several partitions, which are told one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from korvet.admin import reset
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.topics import NewTopic
from korvet.admin.types import Resource, settled
from korvet.console.api_client import ApiClient
from korvet.console.query import BadRequestError

_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Offset = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,19}$")]


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to make; what is not given is left to the broker."""

    name: str
    partitions: _Count | None = None
    configs: dict[str, str] = {}


class GrowTopic(msgspec.Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have in all."""

    name: str
    partitions: _Count


class AlterTopic(msgspec.Struct, forbid_unknown_fields=True):
    """Configs to set; null takes away what is set for the topic itself."""

    name: str
    configs: dict[str, str | None]


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be deleted."""

    name: str


class ResetGroup(msgspec.Struct, forbid_unknown_fields=True):
    """Where the offsets of a group are to move: all that it has committed, or those of a topic.

    `to` is earliest, latest, offset, time or shift, the latter three by `value`: an offset, ms since 1970, or how many
    offsets. Nothing is moved without `execute`.
    """

    name: str
    to: str
    value: _Offset = "0"
    topic: str | None = None
    partitions: list[int] = []
    execute: bool = False


def create_topic(asker: ApiClient, wish: CreateTopic) -> dict[str, Any]:
    """Make a topic. Raises AdminError."""
    topic = NewTopic(wish.name, partitions=wish.partitions, configs=wish.configs)
    made = settled(asker.topics.create([topic]))[wish.name]
    return {"name": made.name, "partitions": made.partitions}


def grow_topic(asker: ApiClient, wish: GrowTopic) -> dict[str, Any]:
    """Add partitions to a topic. Raises AdminError."""
    settled(asker.topics.create_partitions({wish.name: wish.partitions}))
    return {"name": wish.name, "partitions": wish.partitions}


def alter_topic(asker: ApiClient, wish: AlterTopic) -> dict[str, Any]:
    """Change configs of a topic, all of them or none. Raises AdminError."""
    if not wish.configs:
        raise BadRequestError("configs: at least one")
    settled(asker.configs.alter({Resource.topic(wish.name): wish.configs}))
    return {"name": wish.name, "configs": [*wish.configs]}


def delete_topic(asker: ApiClient, wish: Named) -> dict[str, Any]:
    """Delete a topic with its records. Raises AdminError."""
    settled(asker.topics.delete([wish.name]))
    return {"name": wish.name}


def delete_group(asker: ApiClient, wish: Named) -> dict[str, Any]:
    """Delete a group with all that it has committed. Raises AdminError."""
    settled(asker.groups.delete([wish.name]))
    return {"name": wish.name}


def reset_group(asker: ApiClient, wish: ResetGroup) -> dict[str, Any]:
    """Move the offsets of a group without members, or only tell where they would go. Raises AdminError."""
    target = _target(wish)
    topics = None if wish.topic is None else {wish.topic: wish.partitions}
    reset.check_resettable(asker, wish.name)
    moves = reset.plan(asker, wish.name, reset.partitions_in_scope(asker, wish.name, topics), target)
    failed: Mapping[Any, Any] = {}
    if wish.execute:
        outcomes = asker.offsets.alter(wish.name, {place: move.after for place, move in moves.items()})
        failed = {place: error for place, error in outcomes.items() if error is not None}
    return {
        "name": wish.name,
        "executed": wish.execute,
        "moves": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "before": None if move.before is None else str(move.before),
                "after": str(move.after),
                "error": str(failed[place]) if place in failed else None,
            }
            for place, move in moves.items()
        ],
    }


def _target(wish: ResetGroup) -> reset.Target:
    value = int(wish.value)
    if wish.to in {"offset", "time"} and value < 0:
        raise BadRequestError("value: not below 0")
    match wish.to:
        case "earliest":
            return reset.ToTimestamp(EARLIEST)
        case "latest":
            return reset.ToTimestamp(LATEST)
        case "time":
            return reset.ToTimestamp(value)
        case "offset":
            return reset.ToOffset(value)
        case "shift":
            return reset.ShiftBy(value)
    raise BadRequestError("to: earliest, latest, offset, time or shift")
