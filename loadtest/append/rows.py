"""What is measured, and what is sent for it: calls of an append script as a worker makes them, and plain XADDs.

Each batch has random values of its own: Lua keeps one copy of equal texts, so a batch sent again and again would be
cheaper than a producer's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from korvet_core import BatchesBuilder, pack_command

from korvet.protocol.records.batch import with_producer
from korvet.topics.types import Partition
from loadtest.redis_server import Request, WrongError
from tests.support.append_scripts import Answer, Batch, VerdictCode, call_of

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
    """For each batch of one call whether it is a duplicate; the call, and plain XADDs of what it writes."""

    duplicates: list[bool]
    script: Request
    plain: Request

    @property
    def written(self) -> int:
        """How many batches are no duplicates."""
        return self.duplicates.count(False)

    def check(self, reply: object) -> None:
        """Raise WrongError unless a script's answer says that the batches were written, or are duplicates."""
        codes = [code for code, _ in Answer.read(reply).verdicts]
        if codes != [
            VerdictCode.DUPLICATE if duplicate else VerdictCode.APPENDED for duplicate in self.duplicates
        ]:
            raise WrongError(f"a batch was not appended: {[code.name for code in codes]}")


def calls_of(row: Row, partition: Partition) -> list[Call]:
    """Return what a row sends to an empty partition."""
    batches = _batches(row)
    calls, end = [], 0
    for _ in range(row.calls):
        appends = [next(batches) for _ in range(row.batches)]
        script, keys, args = call_of(partition, _LEADER_EPOCH, [batch for batch, _ in appends])
        commands: list[bytes] = []
        for batch, is_duplicate in appends:
            if not is_duplicate:
                commands += _xadds(partition.stream, batch, end)
                end += row.records
        packed = pack_command(("EVALSHA", script.sha, len(keys), *keys, *args))
        plain = Request(b"".join(commands), len(commands))
        calls.append(Call([is_duplicate for _, is_duplicate in appends], Request(packed, 1), plain))
    return calls


def _batches(row: Row) -> Iterator[tuple[Batch, bool]]:
    """Yield batches without end, and whether each is a duplicate."""
    random_values = random.Random(row.name)
    sequences = [0] * max(row.producers, 1)
    batch: Batch | None = None
    number = 0
    while True:
        number += 1
        if batch and row.repeat and number % row.repeat == 0:
            yield batch, True
            continue
        producer = number % len(sequences)
        values = [random_values.randbytes(_VALUE_BYTES) for _ in range(row.records)]
        identity = (1000 + producer, 0, sequences[producer]) if row.producers else (-1, -1, -1)
        # The first batch of a transaction comes with the number that it was verified with.
        transaction = f"t{int(number == 1)}" if row.transactional else "0"
        batch = _batch(row, values, identity, transaction)
        sequences[producer] += row.records
        yield batch, False


def _batch(row: Row, values: list[bytes], identity: tuple[int, int, int], transaction: str) -> Batch:
    """Return a producer's batch as the scripts take it; `identity`: producer id, epoch and sequence."""
    now_ms = time.time_ns() // 1_000_000
    producer, epoch, sequence = identity
    fields = 0
    if row.layout == "batch":
        builder = BatchesBuilder(codec=0, leader_epoch=0, bytes_max=_BATCH_BYTES_MAX, at_least_one=True)
        builder.add([(number, now_ms, None, value, []) for number, value in enumerate(values)])
        plain = b"".join(builder.finish())
        args = [with_producer(plain, *identity, transactional=row.transactional)]
    else:
        names, stamp = [b"value", b"timestamp"], b"%d" % now_ms
        fields, args = len(names), [*names, *(part for value in values for part in (value, stamp))]
    return Batch(
        args,
        row.records,
        sum(map(len, args)) + sum(map(len, args[:fields])) * (row.records - 1),
        fields,
        producer,
        max(epoch, 0),
        sequence,
        now_ms,
        transaction,
    )


def _xadds(stream: str, batch: Batch, end: int) -> list[bytes]:
    """Return the XADDs of a batch's payload past an offset; ids are dense in every layout."""
    if not batch.fields:
        return [pack_command(("XADD", stream, f"0-{end + batch.records}", "batch", *batch.args))]
    names, values = batch.args[: batch.fields], batch.args[batch.fields :]
    rows = zip(*[iter(values)] * batch.fields, strict=True)
    return [
        pack_command(("XADD", stream, f"0-{number}", *chain.from_iterable(zip(names, row, strict=True))))
        for number, row in enumerate(rows, end + 1)
    ]
