"""Transactions as values: what is stored of them, and what has to be done to complete one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from korvet.protocol.types import TopicPartition

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""The states of a transactional id, by Kafka's names."""

UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""Those in which its transaction still holds up readers of committed records."""

OTHER_STATES = ("Dead", "PrepareEpochFence")
"""States of Kafka's coordinator in which no transactional id is stored here: filters know them."""


class ProducerIdentity(NamedTuple):
    """A producer's id, and its epoch, which fences earlier epochs."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(-1, -1)


class AddedPartition(NamedTuple):
    """A partition of a transaction: of the topic with this id, with the partition's slot tag, "" without one."""

    at: TopicPartition
    topic_id: str
    tag: str


class PreparedTransaction(NamedTuple):
    """A transaction of which it is decided how it ends, and whose markers are to be written.

    `then` is what the producer goes on with, `by` what the markers carry.
    """

    then: ProducerIdentity
    by: ProducerIdentity
    number: int
    commit: bool
    partitions: Sequence[AddedPartition]
    groups: Sequence[str]


class StoredTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id as it is now; `started_ms` is -1 if it has had no transaction since its producer began."""

    state: str
    identity: ProducerIdentity
    timeout_ms: int
    started_ms: int
    partitions: Sequence[AddedPartition]
    groups: Sequence[str]


class ListedTransaction(NamedTuple):
    """A transactional id in a list of all."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionFilter(NamedTuple):
    """Which transactional ids to list: empty, None, or a negative duration (KIP-994), is any."""

    states: AbstractSet[str] = frozenset()
    producer_ids: AbstractSet[int] = frozenset()
    duration_ms: int = -1
    matches: Callable[[str], bool] | None = None
