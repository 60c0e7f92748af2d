"""Appending batches, each by one atomic script (lua/log/append.lua, append_batch.lua): arguments and outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.log import batch_format, record_format
from korvet.log.external_entries import ROUNDS_MAX, ExternalEntries, outrun, warn_of_removal
from korvet.log.types import AppendBatch, Appended, AppendRecords
from korvet.pending import Done, Pending
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, RespError, malformed, refused
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_APPEND = scripts.get("log/append")
_APPEND_BATCH = scripts.get("log/append_batch")

SEQUENCE_MODULUS = 2**31
"""KIP-98: sequences wrap from 2^31 - 1 to 0."""

_Call = tuple[Script, tuple[str, ...], list[Arg]]
# The reply of an append that removed external entries is one longer than others.
_EXPELLED_FIELDS = 6

_Outcome = Appended | KafkaError


class AppendScripts:
    """The append scripts of one request, from their sending to their outcomes (Pending).

    A script that meets external entries writes nothing, and is sent again after these have been dealt with.
    """

    def __init__(
        self, redis: Redis, appends: Sequence[AppendRecords | AppendBatch], external: ExternalEntries
    ) -> None:
        self._redis = redis
        self._appends = appends
        self._external = external
        self._outcomes: dict[int, _Outcome] = {}
        self._waiting: dict[int, _Call] = {}
        self._sent_again = False
        for place, append in enumerate(appends):
            try:
                self._waiting[place] = _call(append)
            except KafkaError as error:
                self._outcomes[place] = error
        self._begin_wave()

    @property
    def in_order(self) -> bool:
        """Whether appends begun from now on are written after these: all were sent, and none had to be again."""
        return not (self._waiting or self._sent_again)

    @property
    def ready(self) -> bool:
        """Whether the replies to what was sent are here."""
        return self._replies.ready

    def result(self) -> list[_Outcome]:
        """Wait for the replies, send again what must be, and return the outcomes in the order of the appends."""
        while self._wave:
            self._finish_wave()
            if self._waiting:
                self._sent_again = True
                self._begin_wave()
        return [self._outcomes[place] for place in range(len(self._appends))]

    def _begin_wave(self) -> None:
        """Send what is waiting, of each partition the first.

        Two batches for one partition are sent one after the other: if the first had to be sent again, the second could
        overtake it.
        """
        if len(self._waiting) == 1:
            self._wave, self._waiting = self._waiting, {}
        else:
            first: dict[str, int] = {}
            for place in self._waiting:
                first.setdefault(self._appends[place].partition.stream, place)
            self._wave = {place: self._waiting.pop(place) for place in first.values()}
        self._send()

    def _send(self) -> None:
        try:
            self._replies: Pending[list[Reply]] = self._redis.begin_scripts(list(self._wave.values()))
        except StorageUnavailableError as error:
            self._replies = Done(error)

    def _finish_wave(self) -> None:
        wave = self._wave
        for round_ in range(ROUNDS_MAX):
            if round_:
                self._sent_again = True
                self._send()
            try:
                replies = self._replies.result()
            except StorageUnavailableError as error:
                replies = [error] * len(wave)
            for place, reply in zip(list(wave), replies, strict=True):
                partition = self._appends[place].partition
                if removed := _expelled(reply):
                    warn_of_removal(partition, removed)
                outcome = _read_appended(partition, reply)
                if outcome is not None:
                    self._outcomes[place] = outcome
                    del wave[place]
            for place in list(wave):
                refusal = self._external.settle(self._appends[place].partition)
                if refusal is not None:
                    self._outcomes[place] = refusal
                    del wave[place]
            if not wave:
                return
        self._outcomes |= {place: outrun(self._appends[place].partition) for place in wave}


def _read_appended(partition: Partition, reply: Reply) -> Appended | KafkaError | None:
    """Return the answer of an append script; None if something must be done about external entries first."""
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.stream, reply)
    try:
        outcome, base_offset, log_start, now_ms, row_bytes, *_ = cast(
            "tuple[bytes, bytes, bytes, int, bytes]", reply
        )
        if outcome in (b"RENUMBER", b"EXPEL"):
            return None
        return Appended(
            base_offset=int(base_offset),
            log_start=int(log_start),
            now_ms=now_ms,
            duplicate=outcome == b"DUPLICATE",
            row_bytes=int(row_bytes),
        )
    except (ValueError, TypeError):
        return malformed(partition.stream, "the answer of an append script")


def _expelled(reply: Reply) -> int:
    """Return how many external entries an append in format `batch` removed to make room for its own."""
    count = reply[-1] if isinstance(reply, list) and len(reply) == _EXPELLED_FIELDS else 0
    return count if isinstance(count, int) else 0


def _call(append: AppendRecords | AppendBatch) -> _Call:
    if isinstance(append, AppendBatch):
        return _batch_call(append)
    partition, count = append.partition, len(append.records)
    records = record_format.batch_args(append.records, append.at_rest, append.timestamp)
    head: list[Arg] = [
        partition.topic_id,
        partition.bits,
        append.producer_id,
        append.producer_epoch,
        append.base_sequence,
        (append.base_sequence + count - 1) % SEQUENCE_MODULUS,
        count,
        _stored_bytes(records, count),
        append.max_timestamp if append.timestamp is None else append.timestamp,
        partition.channel,
    ]
    return _APPEND, _keys_of(partition), head + records


def _batch_call(append: AppendBatch) -> _Call:
    partition = append.partition
    fields = batch_format.batch_args(append.batch, append.codec, append.at_rest)
    head: list[Arg] = [
        partition.topic_id,
        append.producer_id,
        append.producer_epoch,
        append.base_sequence,
        (append.base_sequence + append.record_count - 1) % SEQUENCE_MODULUS,
        append.record_count,
        _bytes_of(fields),
        append.max_timestamp,
        partition.channel,
    ]
    return _APPEND_BATCH, _keys_of(partition), head + fields


def _keys_of(partition: Partition) -> tuple[str, ...]:
    return partition.stream, partition.state, partition.producers, partition.index_key


def _bytes_of(args: Iterable[Arg]) -> int:
    return sum(map(len, cast("Iterable[bytes]", args)))


def _stored_bytes(records: list[Arg], count: int) -> int:
    """Return the bytes of the entries' fields and values, of records in the form that lua/log/append.lua takes."""
    shared = cast("int", records[0])
    if shared:
        return _bytes_of(records[1 : shared + 1]) * count + _bytes_of(islice(records, shared + 1, None))
    size, at = 0, 1
    while at < len(records):
        end = at + 1 + cast("int", records[at])
        size += _bytes_of(records[at + 1 : end])
        at = end
    return size
