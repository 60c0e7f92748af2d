"""Appending batches, each by one atomic script: what is sent, and what becomes of the answers.

Knows the arguments of lua/log/append.lua and lua/log/append_batch.lua, and that a script which meets external entries
writes nothing and is sent again when something was done about them; nothing of what that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.log import batch_format as batch_entry
from korvet.log.external_entries import ROUNDS_MAX, ExternalEntries, outrun, warn_of_removal
from korvet.log.record_format import batch_args
from korvet.log.types import AppendBatch, Appended, AppendRecords
from korvet.redis import scripts
from korvet.redis.client import PendingReplies, Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, RespError, malformed, refused
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_APPEND = scripts.get("log/append")
_APPEND_BATCH = scripts.get("log/append_batch")

SEQUENCE_MODULUS = 2**31
"""KIP-98: sequences wrap from 2^31 - 1 to 0."""

_Call = tuple[Script, tuple[str, ...], list[Arg]]
# An answer of an append that removed external entries is one longer than others.
_EXPELLED_FIELDS = 6

_Outcome = Appended | KafkaError


class Appending:
    """The appends of one request, from the moment they are sent to their answers.

    `settle` does something about the external entries of a partition, or returns why it could not.
    """

    def __init__(
        self,
        redis: Redis,
        appends: Sequence[AppendRecords | AppendBatch],
        external: ExternalEntries,
    ) -> None:
        self._redis = redis
        self._appends = appends
        self._external = external
        self._outcomes: dict[int, _Outcome] = {}
        self._waiting: dict[int, _Call] = {}
        self._sent_again = False
        for position, append in enumerate(appends):
            try:
                self._waiting[position] = _call(append)
            except KafkaError as error:
                self._outcomes[position] = error
        self._begin_wave()

    @property
    def in_order(self) -> bool:
        """Whether appends begun from now on are written behind these: all have been sent, and none had to be again."""
        return not (self._waiting or self._sent_again)

    @property
    def ready(self) -> bool:
        """Whether the answers to what was sent are here."""
        return isinstance(self._running, StorageUnavailableError) or self._running.ready

    def result(self) -> list[_Outcome]:
        """Wait for the answers, send again what must be, and return the outcomes in the order of the appends."""
        while self._wave:
            self._finish_wave()
            if self._waiting:
                self._sent_again = True
                self._begin_wave()
        return [self._outcomes[position] for position in range(len(self._appends))]

    def _begin_wave(self) -> None:
        """Send what is waiting, of each partition the first.

        Two batches for one partition go one after the other: were the first told to come again, the second could
        overtake it.
        """
        if len(self._waiting) == 1:
            self._wave, self._waiting = self._waiting, {}
        else:
            first: dict[str, int] = {}
            for position in self._waiting:
                first.setdefault(self._appends[position].partition.stream, position)
            self._wave = {position: self._waiting.pop(position) for position in first.values()}
        self._running = self._send()

    def _send(self) -> PendingReplies | StorageUnavailableError:
        try:
            return self._redis.begin_scripts(list(self._wave.values()))
        except StorageUnavailableError as error:
            return error

    def _replies(self) -> Sequence[Reply]:
        """Wait for the answers to a wave; what prevents them stands in the place of each."""
        running = self._running
        if isinstance(running, StorageUnavailableError):
            return [running] * len(self._wave)
        try:
            return running.result()
        except StorageUnavailableError as error:
            return [error] * len(self._wave)

    def _finish_wave(self) -> None:
        wave = self._wave
        for round_ in range(ROUNDS_MAX):
            if round_:
                self._sent_again = True
                self._running = self._send()
            replies = self._replies()
            for position, reply in zip(list(wave), replies, strict=True):
                partition = self._appends[position].partition
                if removed := _expelled(reply):
                    warn_of_removal(partition, removed)
                outcome = _read_appended(partition, reply)
                if outcome is not None:
                    self._outcomes[position] = outcome
                    del wave[position]
            for position in list(wave):
                refusal = self._external.settle(self._appends[position].partition)
                if refusal is not None:
                    self._outcomes[position] = refusal
                    del wave[position]
            if not wave:
                return
        self._outcomes |= {position: outrun(self._appends[position].partition) for position in wave}


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
    records = batch_args(append.records, append.at_rest, append.timestamp)
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
    fields = batch_entry.batch_args(append.batch, append.codec, append.at_rest)
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
    """Return what the entries' fields and values weigh, of records in the form that lua/log/append.lua takes."""
    shared = cast("int", records[0])
    if shared:
        return _bytes_of(records[1 : shared + 1]) * count + _bytes_of(islice(records, shared + 1, None))
    size, at = 0, 1
    while at < len(records):
        behind = at + 1 + cast("int", records[at])
        size += _bytes_of(records[at + 1 : behind])
        at = behind
    return size
