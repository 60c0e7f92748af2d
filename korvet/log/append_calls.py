"""Calls of the append scripts: their arguments, made of batches, and what became of each batch by their answers.

lua/log/append_batch.lua and lua/log/append_record.lua have the forms of both.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

from korvet.errors import ErrorCode, KafkaError, TransactionUnverifiedError
from korvet.log import batch_format, record_format
from korvet.log.epochs import NO_EPOCH
from korvet.log.types import ABORT, COMMIT, NO_TRANSACTION, RECORDS, AppendBatch, AppendRecords
from korvet.redis import scripts
from korvet.redis.client import ScriptCall
from korvet.redis.replies import Arg, MemoryFullError
from korvet.redis.scripts import Script
from korvet.topics.entry_ids import OFFSETS_END
from korvet.topics.types import Partition

_RECORD = scripts.get("log/append_record")
_BATCH = scripts.get("log/append_batch")

APPEND_SCRIPTS = (_RECORD, _BATCH)
"""The scripts that are sent one after the other without waiting, and must run in that order."""

_CALL_HEAD = struct.Struct(">HIB")
_BATCH_HEAD = struct.Struct(">hIIIqBqBI")
_KINDS = {kind: number for number, kind in enumerate((NO_TRANSACTION, RECORDS, COMMIT, ABORT))}
_PLAIN = _KINDS[NO_TRANSACTION]

_ANSWER = struct.Struct(">BIQQ")
_EXTERNAL = struct.Struct(">BI")
_VERDICT = struct.Struct(">BQ")

_Append: TypeAlias = AppendRecords | AppendBatch


class VerdictCode(IntEnum):
    """What a script says of a batch, with a value; lua/shared/append_verdicts.lua has the same numbers."""

    APPENDED = 0
    DUPLICATE = 1
    VERIFY = 2
    INVALID_PRODUCER_EPOCH = 3
    OPEN_BY_EPOCH = 4
    OUT_OF_ORDER = 5
    TRANSACTION_OPEN = 6
    TRANSACTION_ENDED = 7
    TRANSACTION_NOT_SENT = 8
    MALFORMED_PRODUCER = 9
    MALFORMED_OPEN = 10
    MALFORMED_ABORTED = 11
    USED_UP = 12
    MEMORY_FULL = 13


_WRITTEN = VerdictCode.APPENDED, VerdictCode.DUPLICATE


class BatchArgs(NamedTuple):
    """One batch as a script takes it: its head, its producer's id ("" without one), its entries, their bytes."""

    head: bytes
    producer: Arg
    entries: Sequence[Arg]
    size_bytes: int


class Verdict(NamedTuple):
    """What became of a batch: written at `base_offset`, now or, as a duplicate, before."""

    base_offset: int
    duplicate: bool


class AppendAnswer(NamedTuple):
    """What an append script answered.

    `moved`: external entries that came to new offsets or, in format `batch`, were removed. `complete` is False if more
    of them have to be dealt with first, and nothing is written. `log_start` is as responses report it; `row_bytes` is
    what ever came into the log in bytes as stored, if the call wrote a row of the index, else 0.
    """

    packed: bytes
    complete: bool
    moved: int
    log_start: int = 0
    row_bytes: int = 0

    @classmethod
    def unpack(cls, reply: object) -> AppendAnswer:
        """Raise ValueError for what is no answer of an append script."""
        try:
            if isinstance(reply, bytes) and len(reply) == _EXTERNAL.size and reply[0] == 1:
                return cls(reply, complete=False, moved=_EXTERNAL.unpack(reply)[1])
            status, moved, log_start, row_bytes = _ANSWER.unpack_from(cast("bytes", reply))
        except (struct.error, TypeError) as error:
            raise ValueError("no answer of an append script") from error
        if status != 0:
            raise ValueError("no answer of an append script")
        return cls(cast("bytes", reply), True, moved, log_start, row_bytes)  # noqa: FBT003 - a field

    def verdict(self, append: _Append, at: int) -> Verdict | KafkaError:
        """Return what became of the `at`-th batch of the call; raises ValueError if the answer does not say it."""
        try:
            number, value = _VERDICT.unpack_from(self.packed, _ANSWER.size + at * _VERDICT.size)
            code = VerdictCode(number)
        except struct.error as error:
            raise ValueError("no verdict") from error
        if code in _WRITTEN:
            return Verdict(value, duplicate=code == VerdictCode.DUPLICATE)
        if code == VerdictCode.VERIFY:
            return TransactionUnverifiedError()
        if code == VerdictCode.MEMORY_FULL:
            return MemoryFullError(
                "Redis refused: its memory is full (maxmemory), and only markers are written"
            )
        return _refusal(append, code, value)


REFUSALS = {
    VerdictCode.INVALID_PRODUCER_EPOCH: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "producer {producer_id} has epoch {value}, not {epoch}",
    ),
    VerdictCode.OPEN_BY_EPOCH: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "producer {producer_id} has its transaction open by epoch {value} itself",
    ),
    VerdictCode.OUT_OF_ORDER: (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "producer {producer_id} sent sequence {sequence} in epoch {epoch}, the next one is {value}",
    ),
    VerdictCode.TRANSACTION_OPEN: (
        ErrorCode.INVALID_TXN_STATE,
        "producer {producer_id} is at transaction {value} here, which is open",
    ),
    VerdictCode.TRANSACTION_ENDED: (
        ErrorCode.INVALID_TXN_STATE,
        "producer {producer_id} is at transaction {value} here, which has ended",
    ),
    VerdictCode.TRANSACTION_NOT_SENT: (
        ErrorCode.INVALID_TXN_STATE,
        "producer {producer_id} has transaction {value} open here",
    ),
    VerdictCode.MALFORMED_PRODUCER: (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "{partition.state}: producer {producer_id} is malformed",
    ),
    VerdictCode.MALFORMED_OPEN: (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "{partition.open_transactions} is no sorted set",
    ),
    VerdictCode.MALFORMED_ABORTED: (ErrorCode.KAFKA_STORAGE_ERROR, "{partition.aborted} is no sorted set"),
    VerdictCode.USED_UP: (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "the offsets of {partition.stream} are used up",
    ),
}


def _refusal(append: _Append, code: VerdictCode, value: int) -> KafkaError:
    error, message = REFUSALS[code]
    text = message.format(
        partition=append.partition,
        producer_id=append.producer_id,
        epoch=append.producer_epoch,
        sequence=append.base_sequence,
        value=value,
    )
    return KafkaError(error, text)


def append_script(partition: Partition) -> Script:
    """Return the script that appends to a log."""
    return _BATCH if partition.format == "batch" else _RECORD


def append_call(partition: Partition, batches: Sequence[BatchArgs], *, transactional: bool) -> ScriptCall:
    """Return a call that appends batches to a log; its leader epoch is yet to be set (send_in_epoch)."""
    sent_ms = time.time_ns() // 1_000_000
    bits = max(partition.bits, 0)
    heads = [_CALL_HEAD.pack(sent_ms >> 32, sent_ms & 0xFFFFFFFF, bits), *(batch.head for batch in batches)]
    args: list[Arg] = [partition.topic_id, NO_EPOCH, b"".join(heads)]
    args += [batch.producer for batch in batches]
    for batch in batches:
        args += batch.entries
    keys: tuple[str, ...] = (partition.stream, partition.state, partition.index_key)
    if transactional:
        keys += (partition.open_transactions, partition.aborted)
    return append_script(partition), keys, args


def batch_args(append: _Append) -> BatchArgs:
    """Return one batch as a script takes it. Raises KafkaError: INVALID_RECORD (too many headers)."""
    count = append.record_count
    fields = 0
    if isinstance(append, AppendBatch):
        named = batch_format.batch_args(append.batch, append.codec, append.at_rest)
        entries, size_bytes = named[1::2], _bytes_of(named)
    else:
        fields, entries = _entries_of(append)
        size_bytes = _stored_bytes(fields, entries, count)
    transaction, kind, number = append.transaction, _PLAIN, 0
    if transaction != NO_TRANSACTION:
        kind, number = _KINDS[transaction[0]], int(transaction[1:])
    is_idempotent = append.producer_id >= 0 or append.is_marker
    timestamp = append.max_timestamp if append.timestamp is None else append.timestamp
    head = _BATCH_HEAD.pack(
        append.producer_epoch if is_idempotent else 0,
        max(append.base_sequence, 0),
        count,
        size_bytes,
        min(timestamp, OFFSETS_END),
        kind,
        number,
        fields,
        len(entries),
    )
    return BatchArgs(head, append.producer_id if is_idempotent else b"", entries, size_bytes)


def _entries_of(append: AppendRecords) -> tuple[int, list[Arg]]:
    """Return how many fields all records of an append have, 0 if they differ, and its entries for the script."""
    if append.transaction == NO_TRANSACTION:
        return record_format.batch_args(append.records, append.at_rest, append.timestamp)
    producer = b"%d:%d" % (append.producer_id, append.producer_epoch)
    if append.is_marker:
        commit = append.transaction.startswith(COMMIT)
        return record_format.marker_args(commit, producer, append.max_timestamp)
    return record_format.batch_args(append.records, append.at_rest, append.timestamp, producer)


def _bytes_of(args: Iterable[Any]) -> int:
    return sum(map(len, args))


def _stored_bytes(fields: int, entries: Sequence[Arg], count: int) -> int:
    """Return the bytes of the entries' fields and values."""
    if fields:
        return _bytes_of(entries[:fields]) * count + _bytes_of(islice(entries, fields, None))
    size, at = 0, 0
    while at < len(entries):
        end = at + 1 + cast("int", entries[at])
        size += _bytes_of(entries[at + 1 : end])
        at = end
    return size
