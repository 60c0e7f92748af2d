"""What a topic is made of: its row in the registry, its partitions, and how requests refer to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar, overload

import msgspec

from korvet.redis.keys import TAG_LENGTH

_LOG = logging.getLogger(__name__)

KAFKA_TOPICS = {"__consumer_offsets", "__share_group_state", "__transaction_state"}
"""The topics that each Kafka has; here Redis has what they hold."""


class AtRest(NamedTuple):
    """How values are compressed in Redis (settings storage.compression and storage.compression.min.bytes)."""

    codec: Literal["none", "lz4", "zstd"] = "lz4"
    min_bytes: int = 1024


class Partition(msgspec.Struct, frozen=True, gc=False):
    """One partition of one incarnation of a topic, with its names in Redis; made by `LogStore.partition`.

    `bits` say how ids of entries name offsets (topics/entry_ids.py). `compacted` are the two streams that compaction
    writes to in turn; `open_transactions` and `aborted` are sorted sets of transactions. `replicas` is how many
    replicas of Redis the topic wants to have its records: min.insync.replicas less the master. `tag` is the slot tag
    in its names, "" without one. `share_groups` is a hash.
    """

    topic: str
    index: int
    topic_id: str
    bits: int
    format: Literal["record", "batch"]
    stream: str
    state: str
    index_key: str
    moving: str
    compacted: tuple[str, str]
    open_transactions: str
    aborted: str
    share_groups: str
    channel: str
    replicas: int = 0
    tag: str = ""

    @property
    def is_dense(self) -> bool:
        return self.bits <= 0


class TopicPartitions(Sequence[Partition]):
    """The partitions of a topic by index, each made when it is first asked for.

    Its names take a kilobyte, and a worker meets few of the partitions that a cluster has.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, count: int, make: Callable[[int], Partition]) -> None:
        self._made: list[Partition | None] = [None] * count
        self._make = make

    def __len__(self) -> int:
        return len(self._made)

    def __eq__(self, other: object) -> bool:
        """Compare them one by one, which makes them all."""
        return isinstance(other, TopicPartitions) and list(self) == list(other)

    def __hash__(self) -> int:
        """Return what equal ones share."""
        return len(self)

    @overload
    def __getitem__(self, index: int) -> Partition: ...
    @overload
    def __getitem__(self, index: slice) -> list[Partition]: ...
    def __getitem__(self, index: int | slice) -> Partition | list[Partition]:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._make(range(len(self))[index])
        return made


class TopicRef(NamedTuple):
    """A topic as a request names it: by its id (16 bytes) if it has one, or else by its name."""

    name: str
    id: bytes | None = None


A_co = TypeVar("A_co", covariant=True)


class PartitionRef(NamedTuple, Generic[A_co]):
    """A partition as a request names it, and what the request asks of it."""

    topic: TopicRef
    partition: int
    asked: A_co


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `configs` are those set on it; `assignment` lists the brokers of each partition, None: any.

    `configs` has all configs that are fixed at creation, `named` the names of those set by a client.

    Clients find topics in state `live` alone: of one that is `creating` partitions are missing, one that is `deleting`
    is gone. `growing` is the number that partitions were to grow to: some beyond `partitions` may exist already.
    `claim` and `claim_until` (ms) belong to the process that may create partitions (lua/topic/claim.lua).
    `tags` are the slot tags of the partitions in a row, those that are growing included; "": they have none.
    """

    id: Annotated[str, msgspec.Meta(min_length=1)]
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    configs: dict[str, str] = {}
    named: list[str] = []
    assignment: list[list[int]] | None = None
    state: Literal["live", "creating", "deleting"] = "live"
    growing: int = 0
    claim: int = 0
    claim_until: int = 0
    tags: str = ""
    name: str = ""
    """The field of the row in Redis, and no part of its JSON."""

    def tag(self, index: int) -> str:
        return self.tags[index * TAG_LENGTH : (index + 1) * TAG_LENGTH]


def encode(row: TopicRow) -> bytes:
    """Return the row as JSON; a topic whose partitions are all there has no more fields than it needs."""
    fields = msgspec.structs.asdict(row)
    del fields["name"]
    for name in ("named", "growing", "claim", "claim_until", "tags"):
        if not fields[name]:
            del fields[name]
    return msgspec.json.encode(fields)


def unclaimed(row: TopicRow) -> TopicRow:
    return msgspec.structs.replace(row, claim=0, claim_until=0)


def decode(registry: str, name: bytes, text: bytes) -> TopicRow | None:
    """Return the row of the topic `name`; None, with a log line, if it cannot be read."""
    try:
        return msgspec.structs.replace(msgspec.json.decode(text, type=TopicRow), name=name.decode())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _LOG.error("%s: the row of topic %r is malformed, the topic is unknown: %s", registry, name, error)
        return None
