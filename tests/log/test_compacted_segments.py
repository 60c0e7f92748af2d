"""Reading a log whose beginning is compacted, on a real one; core/proto/tests/log/compacted.rs has the rules."""

from __future__ import annotations

import pytest
from korvet_core import Fetched

from korvet.log.store import LogStore
from korvet.log.types import Read
from korvet.redis.keys import Keys
from tests.log.cleaning import compact
from tests.support.log_bench import Bench, records_of


def filled(bench: Bench, count: int = 6) -> list[int]:
    """Append records, each a batch of its own; return their offsets."""
    return [bench.append(b"%d" % n) for n in range(count)]


@pytest.mark.parametrize("free", [True, False])
def test_a_store_that_has_read_before_learns_of_each_pass(bench: Bench, *, free: bool) -> None:
    other = LogStore(bench.redis, bench.redis, Keys("korvet"))

    def seen() -> list[bytes | None]:
        values: list[bytes | None] = []
        offset = 0
        while True:
            [fetched] = other.read([Read(bench.partition, offset, 2)])
            assert isinstance(fetched, Fetched)
            records = records_of(fetched, offset)
            if not records:
                return values
            values += [record.value for record in records]
            offset = records[-1].offset + 1

    filled(bench)
    assert seen() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    compact(bench, 2, 5, free=free)
    assert seen() == [b"2", b"5"]
    filled(bench, 2)
    compact(bench, 1, 3, free=free)
    assert seen() == [b"5", b"1"]
