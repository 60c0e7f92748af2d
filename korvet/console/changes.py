"""The changes that an operator can make by the console: topics and their configs, groups and their offsets.

Nothing is done in part: each is one request about one thing, except offsets of several partitions, which have an
outcome each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from korvet.admin.offsets import EARLIEST, LATEST, ShiftBy, Target, ToOffset, ToTimestamp
from korvet.admin.topics import NewTopic
from korvet.admin.types import Resource, settled
from korvet.console.api_client import ApiClient
from korvet.console.query import BadRequestError

_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Offset = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,19}$")]


class CreateTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to create; the broker has defaults for what is not given."""

    name: str
    partitions: _Count | None = None
    configs: dict[str, str] = {}


class AddPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """The new total number of partitions of a topic."""

    name: str
    partitions: _Count


class AlterConfigs(msgspec.Struct, forbid_unknown_fields=True):
    """Configs to set; null removes the topic's own value."""

    name: str
    configs: dict[str, str | None]


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """A topic or group to delete."""

    name: str


class ResetOffsets(msgspec.Struct, forbid_unknown_fields=True):
    """The new offsets of a group: of all partitions that it has committed, or those of a topic.

    `to` is earliest, latest, offset, time or shift; for the latter three `value` is an offset, ms since 1970, or a
    number of offsets. Without `execute` nothing changes.
    """

    name: str
    to: str
    value: _Offset = "0"
    topic: str | None = None
    partitions: list[int] = []
    execute: bool = False


def create_topic(client: ApiClient, spec: CreateTopic) -> dict[str, Any]:
    """Create a topic. Raises AdminError."""
    topic = NewTopic(spec.name, partitions=spec.partitions, configs=spec.configs)
    created = settled(client.topics.create([topic]))[spec.name]
    return {"name": created.name, "partitions": created.partitions}


def add_partitions(client: ApiClient, spec: AddPartitions) -> dict[str, Any]:
    """Add partitions to a topic. Raises AdminError."""
    settled(client.topics.create_partitions({spec.name: spec.partitions}))
    return {"name": spec.name, "partitions": spec.partitions}


def alter_configs(client: ApiClient, spec: AlterConfigs) -> dict[str, Any]:
    """Change configs of a topic, all of them or none. Raises AdminError."""
    if not spec.configs:
        raise BadRequestError("configs must not be empty")
    settled(client.configs.alter({Resource.topic(spec.name): spec.configs}))
    return {"name": spec.name, "configs": [*spec.configs]}


def delete_topic(client: ApiClient, spec: Named) -> dict[str, Any]:
    """Delete a topic with its records. Raises AdminError."""
    settled(client.topics.delete([spec.name]))
    return {"name": spec.name}


def delete_group(client: ApiClient, spec: Named) -> dict[str, Any]:
    """Delete a group with its committed offsets. Raises AdminError."""
    settled(client.groups.delete([spec.name]))
    return {"name": spec.name}


def reset_offsets(client: ApiClient, spec: ResetOffsets) -> dict[str, Any]:
    """Reset the offsets of a group without members, or only return what they would become. Raises AdminError."""
    topics = None if spec.topic is None else {spec.topic: spec.partitions}
    moves = client.offsets.plan_reset(spec.name, topics, _target(spec))
    failed: Mapping[Any, Any] = {}
    if spec.execute:
        outcomes = client.offsets.alter(
            spec.name, {partition: move.after for partition, move in moves.items()}
        )
        failed = {partition: error for partition, error in outcomes.items() if error is not None}
    return {
        "name": spec.name,
        "executed": spec.execute,
        "moves": [
            {
                **partition._asdict(),
                "before": None if move.before is None else str(move.before),
                "after": str(move.after),
                "error": str(failed[partition]) if partition in failed else None,
            }
            for partition, move in moves.items()
        ],
    }


def _target(spec: ResetOffsets) -> Target:
    value = int(spec.value)
    if spec.to in {"offset", "time"} and value < 0:
        raise BadRequestError("value must not be negative")
    match spec.to:
        case "earliest":
            return ToTimestamp(EARLIEST)
        case "latest":
            return ToTimestamp(LATEST)
        case "time":
            return ToTimestamp(value)
        case "offset":
            return ToOffset(value)
        case "shift":
            return ShiftBy(value)
    raise BadRequestError("to must be earliest, latest, offset, time or shift")
