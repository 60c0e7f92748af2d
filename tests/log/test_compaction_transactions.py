"""Compaction with transactions: nothing undecided, nothing aborted, and markers as long as readers need them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from korvet.log.appends import Marker
from korvet.log.compaction import CompactionResult
from korvet.log.index import RowBuilder
from korvet.log.markers import MarkerWriter
from korvet.log.types import Appended
from korvet.protocol.records.batch import CONTROL_BIT, HEADER_BYTES, BatchHeader
from tests.log.compacting import CompactedLog
from tests.support import batches
from tests.support.appends import append_of
from tests.support.batches import TIMESTAMP, Record
from tests.support.domain import Domain
from tests.support.log_bench import LAYOUTS

ONE, OTHER = 11, 12
NUMBER = 5


class TransactionalLog(CompactedLog):
    """A compacted log that gets batches of transactions, number NUMBER of each producer."""

    def write(self, producer_id: int, *pairs: tuple[bytes, bytes | None], sequence: int = 0) -> int:
        """Append a batch of a transaction, which opens it; returns its offset."""
        records = [Record(value, key, TIMESTAMP) for key, value in pairs]
        append = append_of(
            self.partition, *records, number=NUMBER, producer_id=producer_id, epoch=0, sequence=sequence
        )
        [result] = self.logs.append([append])
        assert isinstance(result, Appended), result
        return result.base_offset

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        marker = Marker(self.partition, producer_id, 0, NUMBER, commit)
        assert MarkerWriter(self.logs, self.here.replicas).write([marker]) == [None]

    def left(self) -> list[tuple[bytes, bytes | None]]:
        """Return the keys and values that the log holds, and b"marker" with its offset for each marker."""
        result: list[tuple[bytes, bytes | None]] = []
        for segment in (*self.partition.compacted, self.partition.stream):
            for _, fields in self.raw.xrange(segment):
                result += self._records(fields)
        return result

    def _records(self, fields: dict[bytes, bytes]) -> list[tuple[bytes, bytes | None]]:
        if self.partition.format == "record":
            if b"korvet.marker" in fields:
                return [(b"marker", fields[b"korvet.marker"])]
            return [(fields[b"key"], fields.get(b"value"))]
        data = fields[b"batch"]
        if BatchHeader.read(data).attributes & CONTROL_BIT:
            return [(b"marker", b"commit" if data[TYPE_AT] else b"abort")]
        return [(record.key or b"", record.value) for record in batches.read(data)]

    def run(self) -> CompactionResult:
        """Do the pass that must be due, and free what it has compacted."""
        done = self.compacted()
        self.raw.xtrim(self.partition.stream, minid=self._id_of(done.compacted_end), approximate=False)
        return done

    def _id_of(self, offset: int) -> str:
        if self.partition.format == "batch":
            return f"{offset}-1"
        return f"{offset >> self.partition.bits}-{offset & (1 << self.partition.bits) - 1}"


TYPE_AT = HEADER_BYTES + 8
"""Where a control batch says whether it commits: after length, attributes, two deltas, the key's length and version."""


@pytest.fixture(params=LAYOUTS)
def make(
    here: Domain, raw_redis: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr(RowBuilder, "records_per_row", 5)
    return partial(TransactionalLog, here, raw_redis, request.param)


def test_nothing_is_compacted_from_the_first_open_transaction_on(make: Any) -> None:
    log = make()
    log.append((b"a", b"1"), (b"a", b"2"))
    open_from = log.write(ONE, (b"a", b"3"))
    log.append((b"a", b"4"), (b"b", b"1"))
    before = log.left()
    assert all(plan.compacted_end <= open_from for plan in log.plans())
    log.compact()
    assert log.left() == before, "no row of the index lies below the open transaction"
    log.end_transaction(ONE, commit=True)
    log.run()
    assert log.left() == [(b"a", b"4"), (b"b", b"1"), (b"marker", b"commit")]
