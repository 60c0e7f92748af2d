"""What is measured, and what is sent for it: calls of an append script as a worker makes them, and plain XADDs.

Each batch has random values of its own: Lua keeps one copy of equal texts, so a batch sent again and again would be
cheaper than a producer's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from korvet_core import BatchesBuilder, pack_command

from korvet.errors import KafkaError
from korvet.log.append_calls import AppendAnswer, append_call, batch_args
from korvet.log.epoch_scripts import EPOCH_AT
from korvet.log.types import NO_TRANSACTION, RECORDS, AppendBatch, AppendRecords
from korvet.protocol.records.batch import produced_batch, with_producer
from korvet.topics.types import Partition
from loadtest.append.server import Request, WrongError

_Append: TypeAlias = AppendBatch | AppendRecords
_VALUE_BYTES = 100
_BATCH_BYTES_MAX = 1 << 30
_LEADER_EPOCH = 1


class Row(NamedTuple):
    """A form of append: `calls` of `batches` batches, each of `records` records, by `producers` in turn.

    Without producers the batches are not idempotent. With `repeat` n every n-th batch is the one before once more.
    """

    name: str
    layout: Literal["batch", "dense", "time"]
    records: int
    calls: int
    batches: int = 1
    producers: int = 1
    repeat: int = 0
    transactional: bool = False

    @property
    def under_way(self) -> int:
        """How many calls are under way: those of five batches, or of two large ones."""
        return max((2 if self.records >= 1000 else 5) // self.batches, 1)

    @property
    def entries(self) -> int:
        """How many entries a batch becomes."""
        return 1 if self.layout == "batch" else self.records


ROWS = (
    Row("batch 16 KiB", "batch", 150, 500),
    Row("batch 16 KiB, five in a call", "batch", 150, 100, batches=5),
    Row("batch 256 KiB", "batch", 2400, 40),
    Row("batch 1 KiB", "batch", 9, 2500),
    Row("batch 16 KiB, not idempotent", "batch", 150, 500, producers=0),
    Row("batch 16 KiB, 5 % duplicates", "batch", 150, 500, repeat=20),
    Row("batch 16 KiB, 8 producers", "batch", 150, 500, producers=8),
    Row("batch 16 KiB, 8 producers, five in a call", "batch", 150, 100, batches=5, producers=8),
    Row("batch 16 KiB, transactional", "batch", 150, 500, transactional=True),
    Row("record dense, 150", "dense", 150, 100),
    Row("record dense, 10", "dense", 10, 1000),
    Row("record dense, one", "dense", 1, 4000),
    Row("record by time, 150", "time", 150, 100),
    Row("record by time, 10", "time", 10, 1000),
    Row("record by time, one", "time", 1, 4000),
    Row("record dense, 1,000", "dense", 1000, 16),
    Row("record dense, 30,000", "dense", 30_000, 3),
)


class Call(NamedTuple):
    """The batches of one call, and whether each is a duplicate; the call, and plain XADDs of what it writes."""

    appends: list[tuple[_Append, bool]]
    script: Request
    plain: Request

    @property
    def written(self) -> int:
        """How many batches are no duplicates."""
        return sum(not is_duplicate for _, is_duplicate in self.appends)

    def check(self, reply: object) -> None:
        """Raise WrongError unless a script's answer says that the batches were written, or are duplicates."""
        answer = AppendAnswer.unpack(reply)
        for number, (append, is_duplicate) in enumerate(self.appends):
            verdict = answer.verdict(append, number)
            if isinstance(verdict, KafkaError) or verdict.duplicate != is_duplicate:
                raise WrongError(f"a batch was not appended: {verdict}")


def calls_of(row: Row, partition: Partition) -> list[Call]:
    """Return what a row sends to an empty partition."""
    batches = _batches(row, partition)
    calls, end = [], 0
    for _ in range(row.calls):
        appends = [next(batches) for _ in range(row.batches)]
        args = [batch_args(append) for append, _ in appends]
        script, keys, values = append_call(partition, args, transactional=row.transactional)
        cast("list[object]", values)[EPOCH_AT] = _LEADER_EPOCH
        commands: list[bytes] = []
        for append, is_duplicate in appends:
            if not is_duplicate:
                commands += _xadds(append, end)
                end += row.records
        packed = pack_command(("EVALSHA", script.sha, len(keys), *keys, *values))
        calls.append(Call(appends, Request(packed, 1), Request(b"".join(commands), len(commands))))
    return calls


def _batches(row: Row, partition: Partition) -> Iterator[tuple[_Append, bool]]:
    """Yield batches without end, and whether each is a duplicate."""
    random_values = random.Random(row.name)
    sequences = [0] * max(row.producers, 1)
    append: _Append | None = None
    number = 0
    while True:
        number += 1
        if append and row.repeat and number % row.repeat == 0:
            yield append, True
            continue
        producer = number % len(sequences)
        values = [random_values.randbytes(_VALUE_BYTES) for _ in range(row.records)]
        identity = (1000 + producer, 0, sequences[producer]) if row.producers else (-1, -1, -1)
        transaction = NO_TRANSACTION
        if row.transactional:  # the first batch comes with the number that it was verified with
            transaction = f"{RECORDS}{int(number == 1)}"
        append = _append(row, partition, values, identity, transaction)
        sequences[producer] += row.records
        yield append, False


def _append(
    row: Row, partition: Partition, values: list[bytes], identity: tuple[int, int, int], transaction: str
) -> _Append:
    """Return a producer's batch as a worker takes it; `identity`: producer id, epoch and sequence."""
    now_ms = time.time_ns() // 1_000_000
    builder = BatchesBuilder(codec=0, leader_epoch=0, bytes_max=_BATCH_BYTES_MAX, at_least_one=True)
    builder.add([(number, now_ms, None, value, []) for number, value in enumerate(values)])
    data = with_producer(b"".join(builder.finish()), *identity, transactional=row.transactional)
    batch = produced_batch(data, _BATCH_BYTES_MAX)
    fields: dict[str, Any] = {"partition": partition, "max_timestamp": now_ms, "transaction": transaction}
    fields |= zip(("producer_id", "producer_epoch", "base_sequence"), identity, strict=True)
    if row.layout == "batch":
        return AppendBatch(batch=batch.view, codec=batch.header.codec, record_count=row.records, **fields)
    return AppendRecords(records=batch.decode(_BATCH_BYTES_MAX)[0], **fields)


def _xadds(append: _Append, end: int) -> list[bytes]:
    """Return the XADDs of a batch's payload past an offset; ids are dense in every layout."""
    stream = append.partition.stream
    if isinstance(append, AppendBatch):
        return [pack_command(("XADD", stream, f"0-{end + append.record_count}", "batch", append.batch))]
    return [
        pack_command(("XADD", stream, f"0-{end + number}", "value", value or b"", "timestamp", timestamp))
        for number, (_, timestamp, _, value, _) in enumerate(append.records, 1)
    ]
