"""Fetch served by the core as in a worker, over a pair of sockets in the test's own process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from gevent import socket as gevent_socket

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log.appends import Appends
from korvet.log.epochs import NO_EPOCH, EpochStart
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from korvet.protocol.types import IsolationLevel
from korvet.server.net.sockets import Sockets
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import Partition
from tests.support.batches import headers_of
from tests.support.wire_client import WireClient

VERSION = FetchRequest.api.versions[1]


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted in a partition: of which producer, and where it began there."""

    producer_id: int
    first_offset: int


class FetchPartitionSpec(msgspec.Struct, frozen=True):
    """One partition of a fetch: the offset to read from, and its limit in bytes.

    `leader_epoch` is the current one by what the client knows, `last_fetched_epoch` that of the record before the
    offset; NO_EPOCH: the client gives none. `committed`: only committed records are asked for.
    """

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    committed: bool = False


class FetchResult(msgspec.Struct):
    """The answer for one partition: an error, or record batches and bounds; -1 for bounds that are unknown."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    chunks: list[bytes] = []
    diverging: EpochStart | None = None
    aborted: list[AbortedTransaction] | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes the batches have."""
        return sum(map(len, self.chunks))

    @property
    def record_count(self) -> int:
        """How many records the batches have."""
        return sum(header.record_count for header in headers_of(b"".join(self.chunks)))


class Decisions:
    """Decides as a worker does whose clients may do everything."""

    def __init__(self, topics: TopicRegistry, appends: Appends) -> None:
        self._topics, self._appends = topics, appends

    def decide(self, _client: object, word: str, some: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Put the partitions that are asked for."""
        assert word == "topic"
        return list(self._appends.find(self._topics, some))


class _Owner:
    """A connection without a dispatcher."""

    served_by = None

    def note(self, _word: str, _detail: object) -> None:
        """Do nothing."""


class Fetching:
    """Connections of clients that a worker's core serves."""

    def __init__(self, appends: Appends, settings: Settings | None = None) -> None:
        self._sockets = Sockets(settings or Settings(), appends.core, may_all=True)

    def close(self) -> None:
        """Close the connections."""
        self._sockets.close()

    @contextlib.contextmanager
    def client(self) -> Iterator[WireClient]:
        """Give a connection."""
        ours, theirs = socket.socketpair()
        owner: Any = _Owner()
        number = self._sockets.core.adopt(ours.detach(), owner, None, None)
        self._sockets.put_session(number, None)
        with gevent_socket.socket(fileno=theirs.detach()) as client:
            yield WireClient(client)

    def fetch(
        self,
        wanted: Sequence[FetchPartitionSpec],
        *,
        wait_ms: int = 0,
        bytes_min: int = 1,
        bytes_max: int = 50 << 20,
    ) -> list[FetchResult]:
        """Fetch without a session; returns the answers in the same order."""
        with self.client() as client:
            answer: FetchResponse = client.call(request_of(wanted, wait_ms, bytes_min, bytes_max), VERSION)
        return [result_of(partition) for topic in answer.responses for partition in topic.partitions]


def request_of(
    wanted: Sequence[FetchPartitionSpec], wait_ms: int, bytes_min: int, bytes_max: int
) -> FetchRequest:
    """Return the request for some partitions, each a topic of its own."""
    topics = [
        FetchTopic(
            topic_id=partition.topic.id,
            partitions=[
                FetchPartition(
                    partition=partition.partition.index,
                    current_leader_epoch=partition.leader_epoch,
                    fetch_offset=partition.offset,
                    last_fetched_epoch=partition.last_fetched_epoch,
                    partition_max_bytes=partition.bytes_max,
                )
            ],
        )
        for partition in wanted
    ]
    committed = any(partition.committed for partition in wanted)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        topics=topics,
    )


def result_of(answer: Any) -> FetchResult:
    """Return the answer for one partition."""
    diverging, aborted = answer.diverging_epoch, answer.aborted_transactions
    records = bytes(answer.records or b"")
    return FetchResult(
        error=ErrorCode(answer.error_code),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start=answer.log_start_offset,
        chunks=[records] if records else [],
        diverging=None if diverging is None else EpochStart(diverging.epoch, diverging.end_offset),
        aborted=None
        if aborted is None
        else [AbortedTransaction(item.producer_id, item.first_offset) for item in aborted],
    )
