"""Compacting a bench's log by hand: what is to stay is said, not decided."""

from __future__ import annotations

from typing import cast

from korvet_core import RespReader

from korvet.errors import KafkaError
from korvet.log.compaction_store import CompactionPass, CompactionState, CompactionStore, Retained
from tests.support.log_bench import Bench

NOTHING_ELSE = Retained(records=0, bytes=0, interval=-1, rows=(), history=(), tombstones=False)


def state_of(store: CompactionStore, bench: Bench) -> CompactionState:
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
    entries = entries_of(store, under_way, under_way.start)
    left = [entries[place] for place in kept]
    under_way = store.write(under_way, left)
    size = sum(len(field) for _, fields in left for field in fields)
    store.switch(under_way, NOTHING_ELSE._replace(records=len(left), bytes=size))
    while free and store.free(bench.partition):
        pass


def entries_of(
    store: CompactionStore, under_way: CompactionPass, offset: int, entries_max: int = 1000
) -> list[tuple[bytes, list[bytes]]]:
    """Return what a pass reads from an offset on, in the compacted part or in the log."""
    entries: list[tuple[bytes, list[bytes]]] = []
    for start in dict.fromkeys((offset, max(offset, under_way.dirty_start))):
        replies = RespReader(Exception)
        replies.feed(bytes(store.read(under_way, start, entries_max)))
        entries += cast("list[tuple[bytes, list[bytes]]]", replies.next_reply(None))
    return entries[:entries_max]
