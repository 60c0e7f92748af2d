"""The remote tier for consumers: the part of a log that is in the lake only, read without delaying the rest.

A fetch waits for the lake up to remote.fetch.max.wait.ms; an answer that comes later is there for the next fetch. A
lake that is slow, damaged or away affects only the partitions that need it: their fetches come back empty, or with
KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import gevent
import msgspec
from korvet_core import BatchesBuilder

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.log.epochs import epoch_at
from korvet.log.remote.client import RemoteCall, RemoteClient, RemoteRequest, RemoteResponse
from korvet.log.types import RemoteRange
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.control import control_record
from korvet.protocol.records.record import NO_TIMESTAMP
from korvet.telemetry import metrics
from korvet.topics.types import Partition

HELD_SECONDS_MAX = 30.0
"""How long a request, or its answer, is held for a consumer that does not come for it again."""

ANSWER_SECONDS_MAX = 20.0
"""How long a consumer may ask for the same records without an answer before it gets an error."""

HELD_MAX = 128
"""Requests of one worker that may be under way or held."""

HELD_BYTES_MAX = 256 * 1024 * 1024
"""What the answers to them may weigh: a fetch beyond it comes again."""

READ_BYTES_MAX = 16 * 1024 * 1024
"""What is read at once, whatever a fetch allows: consumers with more room fetch again."""

TIMESTAMPS_AT_ONCE = 32
"""Searches by time that one ListOffsets has under way: it may name thousands of partitions."""

_NO_LAKE = "its oldest records are in the lake, and this broker has none (lake.path)"


Stamp: TypeAlias = tuple[int, int]
"""An offset and its timestamp (ms)."""


class _HeldRead(msgspec.Struct, frozen=True, eq=False):
    request: RemoteRequest
    call: RemoteCall
    began_at: float


_Place: TypeAlias = tuple[str, int, int, int]


class RemoteTier:
    """The remote tier as the consumers of one worker see it."""

    def __init__(
        self,
        client: RemoteClient | None,
        settings: Settings,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        """`client` is None if this broker has no lake."""
        self._client = client
        self.use(settings)
        self._clock = clock
        self._held: dict[_Place, _HeldRead] = {}
        self._forgetting: gevent.Greenlet[..., None] | None = None

    def use(self, settings: Settings) -> None:
        """Wait from now on as long as remote.fetch.max.wait.ms and remote.list.offsets.request.timeout.ms say."""
        self._wait_s = settings.remote_fetch_max_wait_ms / 1000
        self._timeout_s = settings.remote_list_offsets_request_timeout_ms / 1000

    def read(
        self, requests: Sequence[RemoteRequest], *, wait: bool
    ) -> list[RemoteResponse | KafkaError | None]:
        """Answer each `read_request`; None: the lake has not answered yet, and a later fetch may find that it has.

        All are sent at once. Without `wait` only what is there already is taken; with it nothing comes back sooner
        than an answer, or the end of the time for one: after None the caller may try again at once. In the answers
        KafkaError KAFKA_STORAGE_ERROR.
        """
        self._forget()
        begun = [self._begin(request) for request in requests]
        deadline = self._clock.monotonic() + self._wait_s
        answers: list[RemoteResponse | KafkaError | None] = []
        for read in begun:
            if isinstance(read, _HeldRead):
                left = max(0.0, deadline - self._clock.monotonic()) if wait else 0.0
                answers.append(self._answer(read, left))
            else:
                answers.append(read)
        if wait and all(answer is None for answer in answers):
            # A request beyond the limits was not sent, and could not be waited for.
            self._clock.sleep(max(0.0, deadline - self._clock.monotonic()))
        return answers

    def timestamps(self, requests: Sequence[RemoteRequest]) -> list[Stamp | KafkaError | None]:
        """Return for each `search_request` the record's offset and timestamp (ms), None without one.

        They share one timeout. In the answers KafkaError KAFKA_STORAGE_ERROR.
        """
        deadline = self._clock.monotonic() + self._timeout_s
        answers: list[Stamp | KafkaError | None] = []
        for at in range(0, len(requests), TIMESTAMPS_AT_ONCE):
            chunk = requests[at : at + TIMESTAMPS_AT_ONCE]
            calls = [self._begin_search(request, deadline) for request in chunk]
            answers += [self._finish_search(call, deadline) for call in calls]
        return answers

    def _begin_search(self, request: RemoteRequest, deadline: float) -> RemoteCall | KafkaError:
        wait_s = deadline - self._clock.monotonic()
        if wait_s <= 0:
            message = "the lake did not answer earlier requests in time"
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        try:
            return self._send(request, wait_s)
        except KafkaError as error:
            return error.without_frames()

    def _finish_search(self, call: RemoteCall | KafkaError, deadline: float) -> Stamp | KafkaError | None:
        try:
            answer = or_raise(call).finish(max(0.0, deadline - self._clock.monotonic()))
        except KafkaError as error:
            metrics.LAKE_READ_ERRORS.inc()
            return error.without_frames()
        return None if answer.offset < 0 else (answer.offset, answer.timestamp)

    def _begin(self, request: RemoteRequest) -> _HeldRead | KafkaError | None:
        """Return the read that was begun for this request before, or begin it now; None: too many wait already."""
        place = _place(request)
        held = self._held.get(place)
        if held is not None and _serves(held.request, request):
            return held
        if held is not None:
            self._drop(held)
        held_bytes = sum(held_read.request.bytes_max for held_read in self._held.values())
        if len(self._held) >= HELD_MAX or held_bytes + request.bytes_max > HELD_BYTES_MAX:
            return None
        try:
            held = _HeldRead(request, self._send(request, HELD_SECONDS_MAX), self._clock.monotonic())
        except KafkaError as error:
            metrics.LAKE_READ_ERRORS.inc()
            return error.without_frames()
        self._held[place] = held
        if self._forgetting is None:
            self._forgetting = gevent.spawn_later(HELD_SECONDS_MAX, self._forget_by_and_by)
        return held

    def _send(self, request: RemoteRequest, wait_s: float) -> RemoteCall:
        if self._client is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, _NO_LAKE)
        return self._client.send(msgspec.structs.replace(request, until=self._clock.monotonic() + wait_s))

    def _answer(self, held: _HeldRead, wait_s: float) -> RemoteResponse | KafkaError | None:
        if not held.call.wait(wait_s):
            if self._clock.monotonic() - held.began_at < ANSWER_SECONDS_MAX:
                return None
            if self._held.get(_place(held.request)) is held:
                self._drop(held)
            metrics.LAKE_READ_ERRORS.inc()
            message = f"the lake did not answer within {ANSWER_SECONDS_MAX:g} s"
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        if self._held.get(_place(held.request)) is held:
            del self._held[_place(held.request)]
        try:
            return held.call.finish(0)
        except KafkaError as error:
            metrics.LAKE_READ_ERRORS.inc()
            return error.without_frames()

    def _drop(self, held: _HeldRead) -> None:
        del self._held[_place(held.request)]
        held.call.abandon()

    def _forget(self) -> None:
        before = self._clock.monotonic() - HELD_SECONDS_MAX
        for held in [held for held in self._held.values() if held.began_at <= before]:
            self._drop(held)

    def _forget_by_and_by(self) -> None:
        """Drop what no consumer came for, as long as anything is held: there may be no other read here to do it."""
        while self._held:
            self._forget()
            if self._held:
                gevent.sleep(HELD_SECONDS_MAX)
        self._forgetting = None


def _place(request: RemoteRequest) -> _Place:
    return request.topic, request.partition, request.offset, request.codec


def _serves(held: RemoteRequest, request: RemoteRequest) -> bool:
    """Return whether the answer to one request may be given to another: it is no larger than that allows."""
    return (
        held.topic_id == request.topic_id
        and held.bytes_max <= request.bytes_max
        and (request.at_least_one or not held.at_least_one)
    )


def read_request(
    partition: Partition, remote: RemoteRange, offset: int, bytes_max: int, *, at_least_one: bool, codec: int
) -> RemoteRequest:
    """Return a read of archived records from `offset` on: at most `bytes_max`, but for one record with `at_least_one`.

    `codec` is the number of the codec in which batches are served.
    """
    return RemoteRequest(
        number=0,
        kind="read",
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.index,
        offset=offset,
        archived=remote.archived,
        bytes_max=min(bytes_max, READ_BYTES_MAX),
        at_least_one=at_least_one,
        codec=codec,
        epochs=remote.epochs,
    )


def to_end(
    answer: RemoteResponse | KafkaError | None, remote: RemoteRange | None, end: int
) -> RemoteResponse | KafkaError | None:
    """Return the answer to a read, or a marker right before `end` for an empty one if Redis has nothing before `end`.

    Markers and aborted records are not archived: if they are the last of a log, no record leads consumers past them.
    """
    if not isinstance(answer, RemoteResponse) or remote is None:
        return answer
    if answer.record_count or answer.more or remote.end < end:
        return answer
    epoch = epoch_at(remote.epochs, end - 1)
    marker = BatchesBuilder(codec=Codec.none, leader_epoch=epoch, bytes_max=0, at_least_one=True)
    marker.add_control(control_record(commit=True, timestamp_ms=NO_TIMESTAMP, offset=end - 1))
    return RemoteResponse(answer.number, data=b"".join(marker.finish()), record_count=1, next_offset=end)


def search_request(partition: Partition, remote: RemoteRange, timestamp: int | None) -> RemoteRequest:
    """Return a search for the first archived record that is not older than `timestamp` (ms).

    Without a timestamp: for the first of those with the largest one. Redis may hold either of them too.
    """
    return RemoteRequest(
        number=0,
        kind="largest" if timestamp is None else "first_from",
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.index,
        offset=remote.start,
        archived=remote.archived,
        timestamp=-1 if timestamp is None else timestamp,
    )
