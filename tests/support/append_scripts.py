"""Calls of the append scripts made by hand, from what lua/log/append_batch.lua and append_record.lua say of them.

The core packs the same calls and reads the same answers (core/proto/src/append): neither form is made of the other.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

from korvet.redis import scripts
from korvet.redis.client import ScriptCall
from korvet.topics.entry_ids import OFFSETS_END
from korvet.topics.types import Partition

_CALL_HEAD = struct.Struct(">HIB")
_BATCH_HEAD = struct.Struct(">hIIIqBqBI")
_EXTERNAL = struct.Struct(">BI")
_ANSWER = struct.Struct(">BIQQ")
_VERDICT = struct.Struct(">BQ")
_KINDS = "0tca"


class VerdictCode(IntEnum):
    """What a script says of a batch; lua/shared/append_verdicts.lua has the same numbers."""

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


class Batch(NamedTuple):
    """A batch as the scripts take it: arguments of its own, how many records it has, and its size as stored.

    `fields` is how many fields all of its records have, said once; 0: each record says its own. `transaction` is "0"
    for none, `t` and a number for records, `c` or `a` and a number for the marker that commits or aborts it.
    """

    args: Sequence[Any]
    records: int
    size: int
    fields: int = 0
    producer: int = -1
    epoch: int = 0
    sequence: int = 0
    max_timestamp: int = 5
    transaction: str = "0"

    @property
    def is_transactional(self) -> bool:
        """Whether it needs the keys of transactions."""
        return self.transaction != "0"

    @property
    def head(self) -> bytes:
        """What the third argument of a call has of it."""
        return _BATCH_HEAD.pack(
            *(
                self.epoch,
                max(self.sequence, 0),
                self.records,
                self.size,
                min(self.max_timestamp, OFFSETS_END),
            ),
            *(_KINDS.index(self.transaction[0]), int(self.transaction[1:] or 0), self.fields, len(self.args)),
        )


def call_args(topic_id: str, leader_epoch: int, bits: int, batches: Sequence[Batch]) -> list[Any]:
    """Return the arguments of one call; `bits` are those of a partition, 0 in format `batch`."""
    sent_ms = time.time_ns() // 1_000_000
    head = _CALL_HEAD.pack(sent_ms >> 32, sent_ms & 0xFFFFFFFF, bits)
    return [
        *(topic_id, leader_epoch, head + b"".join(batch.head for batch in batches)),
        *(batch.producer if batch.producer >= 0 else "" for batch in batches),
        *(arg for batch in batches for arg in batch.args),
    ]


def call_of(partition: Partition, leader_epoch: int, batches: Sequence[Batch]) -> ScriptCall:
    """Return the call that appends batches to a partition."""
    keys: tuple[str, ...] = (partition.stream, partition.state, partition.index_key)
    if any(batch.is_transactional for batch in batches):
        keys += (partition.open_transactions, partition.aborted)
    args = call_args(partition.topic_id, leader_epoch, max(partition.bits, 0), batches)
    return scripts.get(f"log/append_{partition.format}"), keys, args


class Answer(NamedTuple):
    """What a script answered; without verdicts nothing was done: entries of others must be dealt with first.

    `moved`: entries of others that came to new offsets, or were removed. `row_bytes`: what ever came into the log, in
    bytes as stored, if its index got a row. A verdict has the base offset with it, or what was expected.
    """

    moved: int
    log_start: int = -1
    row_bytes: int = 0
    verdicts: Sequence[tuple[VerdictCode, int]] = ()

    @classmethod
    def read(cls, reply: object) -> Answer:
        """Read a reply; fails unless it is an answer."""
        packed = cast("bytes", reply)
        if packed[0] == 1:
            return cls(_EXTERNAL.unpack(packed)[1])
        status, moved, log_start, row_bytes = _ANSWER.unpack_from(packed)
        assert status == 0
        verdicts = [
            (VerdictCode(code), value) for code, value in _VERDICT.iter_unpack(packed[_ANSWER.size :])
        ]
        assert verdicts
        return cls(moved, log_start, row_bytes, verdicts)
