"""Compacting a bench's log by hand: what is to stay is said, not decided."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.log.compaction_store import CompactionPass, CompactionState, CompactionStore, Retained
from korvet.topics.entry_ids import end_of_id
from tests.support.log_bench import Bench

NOTHING_ELSE = Retained(records=0, bytes=0, interval=-1, rows=(), history=(), tombstones=False)


def state_of(store: CompactionStore, bench: Bench) -> CompactionState:
    """Look at the bench's partition."""
    [look] = store.states([bench.partition])
    assert not isinstance(look, KafkaError), look
    return look


def begun(
    store: CompactionStore, bench: Bench, name: str = "mine", compacted_end: int | None = None
) -> CompactionPass:
    """Begin a pass, up to the end of the log where nothing else is said."""
    look = state_of(store, bench)
    under_way = store.begin(bench.partition, name, look, look.end if compacted_end is None else compacted_end)
    assert under_way is not None
    return under_way


def compact(bench: Bench, *kept: int, compacted_end: int | None = None, free: bool = True) -> None:
    """Compact the log: of its entries, a record each, those stay whose places, from 0 on, are in `kept`."""
    store = CompactionStore(bench.redis)
    under_way = begun(store, bench, compacted_end=compacted_end)
    entries = []
    offset = under_way.start
    while found := store.read(under_way, offset, 1):
        entries += found
        offset = offset_after(bench, found[0][0])
    left = [entries[place] for place in kept]
    under_way = store.write(under_way, left)
    size = sum(len(field) for _, fields in left for field in fields)
    store.switch(under_way, NOTHING_ELSE._replace(records=len(left), bytes=size))
    while free and store.free(bench.partition):
        pass


def offset_after(bench: Bench, entry_id: bytes) -> int:
    """Return the offset just past an entry."""
    return end_of_id(entry_id, bench.partition.bits) or 0
