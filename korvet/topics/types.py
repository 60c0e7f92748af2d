"""A topic's row in the registry, as JSON in Redis and as a value here.

Knows the form of a row and who is told of one that cannot be read; nothing of scripts or of what a row may say.
"""

from __future__ import annotations

import logging
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import msgspec

_LOG = logging.getLogger(__name__)


class AtRest(NamedTuple):
    """How values are compressed in Redis (settings storage.compression and storage.compression.min.bytes)."""

    codec: Literal["none", "lz4", "zstd"] = "lz4"
    min_bytes: int = 1024


class Partition(msgspec.Struct, frozen=True, gc=False):
    """One partition of one incarnation of a topic, with its names in Redis; made by `LogStore.partition`.

    `compacted` are the two streams that compaction writes to in turn.
    """

    topic: str
    index: int
    topic_id: str
    bits: int
    format: Literal["record", "batch"]
    stream: str
    state: str
    producers: str
    index_key: str
    moving: str
    compacted: tuple[str, str]
    channel: str


class TopicRef(NamedTuple):
    """A topic as a request gives it: by its name or, where there is one, by its id (16 bytes)."""

    name: str
    id: bytes | None = None


A_co = TypeVar("A_co", covariant=True)


class PartitionRef(NamedTuple, Generic[A_co]):
    """A partition as a request gives it, and what is asked of it."""

    topic: TopicRef
    partition: int
    asked: A_co


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `configs` are those set on it; `assignment` lists the brokers of each partition, None: any.

    A topic in state `deleting` is gone for everybody but those who clear away what it has left.
    """

    name: str
    id: str
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    configs: dict[str, str] = {}
    assignment: list[list[int]] | None = None
    state: Literal["live", "deleting"] = "live"


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A row as JSON in the registry, where the name is the field's."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    configs: dict[str, str] = {}
    assignment: list[list[int]] | None = None
    state: Literal["live", "deleting"] = "live"


def encode(row: TopicRow) -> bytes:
    """Return the row as JSON."""
    stored = _Stored(
        id=row.id,
        partitions=row.partitions,
        configs=row.configs,
        assignment=row.assignment,
        state=row.state,
    )
    return msgspec.json.encode(stored)


def decode(registry: str, name: bytes, text: bytes) -> TopicRow | None:
    """Return the row of the topic `name`; None, and one log line, where nobody can read it."""
    try:
        stored = msgspec.json.decode(text, type=_Stored)
        return TopicRow(
            name=name.decode(),
            id=stored.id,
            partitions=stored.partitions,
            configs=stored.configs,
            assignment=stored.assignment,
            state=stored.state,
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _LOG.error("%s: the row of topic %r is malformed, the topic is unknown: %s", registry, name, error)
        return None
