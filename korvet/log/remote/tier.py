"""Archived records for consumers: the part of a log that is in the lake only, asked for without holding up the rest.

Knows how long a fetch waits for the lake, and that an answer which comes too late is there for the next fetch; what the
lake is asked, and by whom it is read, is storage's. A lake that is slow, damaged or away costs the partitions that need
it: their fetches come back empty, or with KAFKA_STORAGE_ERROR, and all others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import gevent
import msgspec

from korvet.cluster.brokers import LEADER_EPOCH
from korvet.errors import ErrorCode, KafkaError
from korvet.log.remote.client import Kind, RemoteCall, RemoteClient, RemoteRequest, RemoteResponse
from korvet.log.types import RemoteRange
from korvet.topics.types import Partition

HELD_SECONDS_MAX = 30.0
"""How long a question, or its answer, is held for a consumer that does not come for it again."""

ANSWER_SECONDS_MAX = 20.0
"""How long a consumer may come for the same answer in vain, before it is told that the lake does not give it."""

HELD_MAX = 128
"""Questions of one worker that may be under way or held."""

HELD_BYTES_MAX = 256 * 1024 * 1024
"""What the answers to them may weigh: a fetch that has no place yet comes again."""

READ_BYTES_MAX = 16 * 1024 * 1024
"""What is asked for at once, whatever a fetch allows: consumers with more room ask again."""

STAMPS_AT_ONCE = 32
"""Questions by time of one request that are under way: a request may ask of thousands of partitions."""

_NO_LAKE = "its oldest records are in the lake, and this broker has none (lake.path)"


class RemoteReadRequest(msgspec.Struct, frozen=True):
    """A wish for archived records from `offset` on: so many bytes, but for one record with `at_least_one`.

    `codec` is the number of the codec in which batches are served.
    """

    partition: Partition
    cold: RemoteRange
    offset: int
    bytes_max: int
    at_least_one: bool
    codec: int


class RemoteTimestampRequest(msgspec.Struct, frozen=True):
    """A wish for the first archived record that is not older than `timestamp` (ms), if only the lake holds it.

    Without a timestamp: for the first of those with the largest one, which may be one that Redis holds too.
    """

    partition: Partition
    cold: RemoteRange
    timestamp: int | None


Stamp: TypeAlias = tuple[int, int]


class _Held(msgspec.Struct, frozen=True, eq=False):
    wish: RemoteReadRequest
    question: RemoteCall
    asked_at: float


_Place: TypeAlias = tuple[str, int, int]


class RemoteTier:
    """The lake as the consumers of one worker see it."""

    def __init__(
        self,
        store: RemoteClient | None,
        *,
        wait_ms: int,
        timeout_ms: int,
        count_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` is None where this broker has no lake.

        A fetch waits for `wait_ms` (remote.fetch.max.wait.ms), a question by time for `timeout_ms`. `count_error` is
        told of every answer that was an error.
        """
        self._store = store
        self._wait_s = wait_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._count_error = count_error
        self._clock = clock
        self._held: dict[_Place, _Held] = {}
        self._forgetting: gevent.Greenlet[..., None] | None = None

    def read(
        self, wishes: Sequence[RemoteReadRequest], *, wait: bool
    ) -> list[RemoteResponse | KafkaError | None]:
        """Answer each wish; None: the lake has not answered yet, and a later fetch may find that it has.

        All are asked at once. Without `wait` only what is there already is taken; with it nothing comes back sooner
        than an answer, or the end of the time for one: whoever is told None may ask again at once. In the answers
        KafkaError KAFKA_STORAGE_ERROR.
        """
        self._forget()
        asked = [self._begin(wish) for wish in wishes]
        deadline = self._clock() + self._wait_s
        answers: list[RemoteResponse | KafkaError | None] = []
        for each in asked:
            if isinstance(each, _Held):
                left = max(0.0, deadline - self._clock()) if wait else 0.0
                answers.append(self._answer(each, left))
            else:
                answers.append(each)
        if wait and all(each is None for each in answers):
            # What had no place could not be waited for.
            gevent.sleep(max(0.0, deadline - self._clock()))
        return answers

    def stamps(self, wishes: Sequence[RemoteTimestampRequest]) -> list[Stamp | KafkaError | None]:
        """Return for each wish the record's offset and timestamp (ms), None where there is none.

        They have one time-out, however many they are. In the answers KafkaError KAFKA_STORAGE_ERROR.
        """
        deadline = self._clock() + self._timeout_s
        answers: list[Stamp | KafkaError | None] = []
        for at in range(0, len(wishes), STAMPS_AT_ONCE):
            some = wishes[at : at + STAMPS_AT_ONCE]
            asked = [self._begin_stamp(wish, deadline) for wish in some]
            answers += [
                self._stamp(wish, question, deadline) for wish, question in zip(some, asked, strict=True)
            ]
        return answers

    def _begin_stamp(self, wish: RemoteTimestampRequest, deadline: float) -> RemoteCall | KafkaError:
        wanted_s = deadline - self._clock()
        if wanted_s <= 0:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the lake has not answered those before in time")
        kind: Kind = "largest" if wish.timestamp is None else "first_from"
        request = _request(kind, wish.partition, wish.cold, wish.cold.start)
        if wish.timestamp is not None:
            request = msgspec.structs.replace(request, timestamp=wish.timestamp)
        try:
            return self._ask(request, wanted_s)
        except KafkaError as error:
            return error

    def _stamp(
        self, wish: RemoteTimestampRequest, asked: RemoteCall | KafkaError, deadline: float
    ) -> Stamp | KafkaError | None:
        try:
            if isinstance(asked, KafkaError):
                raise asked
            answer = asked.finish(max(0.0, deadline - self._clock()))
        except KafkaError as error:
            self._count_error()
            return error
        is_hot = wish.timestamp is not None and answer.offset >= wish.cold.end
        return None if answer.offset < 0 or is_hot else (answer.offset, answer.timestamp)

    def _begin(self, wish: RemoteReadRequest) -> _Held | KafkaError | None:
        """Return the question that was asked for this wish before, or ask it now; None: too many wait already."""
        wish = msgspec.structs.replace(wish, bytes_max=min(wish.bytes_max, READ_BYTES_MAX))
        held = self._held.get(_place(wish))
        if held is not None and _serves(held.wish, wish):
            return held
        if held is not None:
            self._drop(held)
        held_bytes = sum(each.wish.bytes_max for each in self._held.values())
        if len(self._held) >= HELD_MAX or held_bytes + wish.bytes_max > HELD_BYTES_MAX:
            return None
        request = _request("read", wish.partition, wish.cold, wish.offset)
        request = msgspec.structs.replace(
            request, bytes_max=wish.bytes_max, at_least_one=wish.at_least_one, codec=wish.codec
        )
        try:
            held = _Held(wish, self._ask(request, HELD_SECONDS_MAX), self._clock())
        except KafkaError as error:
            self._count_error()
            return error
        self._held[_place(wish)] = held
        if self._forgetting is None:
            self._forgetting = gevent.spawn_later(HELD_SECONDS_MAX, self._forget_by_and_by)
        return held

    def _ask(self, request: RemoteRequest, wanted_s: float) -> RemoteCall:
        if self._store is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, _NO_LAKE)
        return self._store.ask(msgspec.structs.replace(request, until=self._clock() + wanted_s))

    def _answer(self, held: _Held, wait_s: float) -> RemoteResponse | KafkaError | None:
        if not held.question.wait(wait_s):
            if self._clock() - held.asked_at < ANSWER_SECONDS_MAX:
                return None
            if self._held.get(_place(held.wish)) is held:
                self._drop(held)
            self._count_error()
            message = f"the lake did not answer within {ANSWER_SECONDS_MAX:g} s"
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        if self._held.get(_place(held.wish)) is held:
            del self._held[_place(held.wish)]
        try:
            return held.question.finish(0)
        except KafkaError as error:
            self._count_error()
            return error

    def _drop(self, held: _Held) -> None:
        del self._held[_place(held.wish)]
        held.question.abandon()

    def _forget(self) -> None:
        before = self._clock() - HELD_SECONDS_MAX
        for held in [held for held in self._held.values() if held.asked_at <= before]:
            self._drop(held)

    def _forget_by_and_by(self) -> None:
        """Drop what nobody came for, and look again as long as anything is held: maybe nobody reads here any more."""
        while self._held:
            self._forget()
            if self._held:
                gevent.sleep(HELD_SECONDS_MAX)
        self._forgetting = None


def _place(wish: RemoteReadRequest) -> _Place:
    return wish.partition.stream, wish.offset, wish.codec


def _serves(held: RemoteReadRequest, wish: RemoteReadRequest) -> bool:
    """Tell whether the answer to one wish may be given for another: it brings no more than that asks for."""
    return (
        held.partition == wish.partition
        and held.bytes_max <= wish.bytes_max
        and (wish.at_least_one or not held.at_least_one)
    )


def _request(kind: Kind, partition: Partition, cold: RemoteRange, offset: int) -> RemoteRequest:
    return RemoteRequest(
        number=0,
        kind=kind,
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.index,
        offset=offset,
        archived=cold.archived,
        leader_epoch=LEADER_EPOCH,
    )
