"""A fetch for a share group turns records into runs, archived parts, and batches of a part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from korvet_core import Fetched

from korvet.log.types import Read
from korvet.share.reading import SharePiece, chunks, piece
from korvet.share.types import AcquiredRange
from korvet.topics.registry import TopicSpec
from tests.support.batches import read
from tests.support.domain import Domain
from tests.support.transactions import TransactionalProducer

ROOM = 1 << 20


@pytest.fixture(params=["record", "batch"])
def filled(here: Domain, request: pytest.FixtureRequest) -> Domain:
    """Give a log with records of two transactions, of which the first was aborted, and others between."""
    here.topics.create(TopicSpec(name="orders", partitions=1, configs={"storage.format": request.param}))
    one, two = TransactionalProducer(here, producer_id=7), TransactionalProducer(here, producer_id=8)
    here.append("orders", b"a", b"b")
    one.write(b"aborted 1", b"aborted 2")
    two.write(b"kept 1")
    here.append("orders", b"c")
    one.write(b"aborted 3")
    one.abort()
    two.write(b"kept 2", b"kept 3")
    two.commit()
    one.write(b"kept 4")
    one.commit()
    here.append("orders", b"d")
    return here


def fetched_from(view: Domain, start: int = 0, *, committed: bool = False) -> Fetched:
    partition = view.topics.get("orders").partition(0)
    [fetched] = view.log.read([Read(partition, start, 100, committed=committed)])
    assert isinstance(fetched, Fetched)
    return fetched


def whole(fetched: Fetched, start: int = 0, room: int = ROOM) -> SharePiece:
    made = piece(start, fetched, room)
    assert made is not None
    return made


def offsets_in(spans: Any) -> list[int]:
    return [offset for first, last, *_ in spans for offset in range(first, last + 1)]


def values_of(view: Domain, made: SharePiece, offsets: list[int]) -> list[bytes | None]:
    """Return the values of the records that a client finds at these offsets if it has acquired them."""
    ranges = [AcquiredRange(offset, offset, 1) for offset in offsets]
    batches, count = chunks([(made, ranges)], view.topics.get("orders"))
    records = read(b"".join(batches))
    assert len(records) == count
    held = {record.offset: record.value for record in records}
    assert len(held) == count
    return [held[offset] for offset in offsets]


def test_records_of_aborted_transactions_and_markers_are_archived(filled: Domain) -> None:
    for committed, kept in (
        (True, [b"a", b"b", b"kept 1", b"c", b"kept 2", b"kept 3", b"kept 4", b"d"]),
        (
            False,
            [
                *(b"a", b"b", b"aborted 1", b"aborted 2", b"kept 1", b"c"),
                *(b"aborted 3", b"kept 2", b"kept 3", b"kept 4", b"d"),
            ],
        ),
    ):
        made = whole(fetched_from(filled, committed=committed))
        archived = set(offsets_in(made.readable.archived))
        rest = [item for item in offsets_in(made.readable.runs) if item not in archived]
        assert values_of(filled, made, rest) == kept
        assert (made.acquirable, len(archived)) == (len(kept), 14 - len(kept))
        assert made.readable.end == fetched_from(filled).high_watermark


def test_what_is_archived_does_not_hang_on_where_a_read_begins(filled: Domain) -> None:
    everything = whole(fetched_from(filled, committed=True)).readable
    for start in offsets_in(everything.runs):
        made = whole(fetched_from(filled, start, committed=True), start).readable
        archived = [item for item in offsets_in(made.archived) if item >= start]
        assert archived == [item for item in offsets_in(everything.archived) if item >= start]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_member_gets_every_record_that_it_has_acquired(filled: Domain, data: st.DataObject) -> None:
    made = whole(fetched_from(filled))
    archived = set(offsets_in(made.readable.archived))
    free = [item for item in offsets_in(made.readable.runs) if item not in archived]
    chosen = data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True).map(sorted))
    assert values_of(filled, made, chosen) == [
        values_of(filled, made, free)[free.index(item)] for item in chosen
    ]


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_no_more_is_read_than_there_is_room_for(here: Domain, storage_format: str) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1, configs={"storage.format": storage_format}))
    for number in range(10):
        here.append("orders", b"%d" % number * 1000)
    fetched = fetched_from(here)
    for room, count in ((1, 1), (2_500, 2), (5_500, 5), (ROOM, 10)):
        made = whole(fetched, room=room)
        assert (made.entries, made.acquirable, len(offsets_in(made.readable.runs))) == (count, count, count)
        assert made.readable.end == (fetched.visible_end if count == 10 else made.readable.runs[-1][1] + 1)
    assert piece(0, fetched, 1, at_least_one=False) is None


def test_nothing_is_said_of_what_was_not_read(here: Domain) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1))
    here.append("orders", b"a")
    fetched = fetched_from(here)
    end = fetched.high_watermark
    # All below the end was read, and there is nothing.
    assert whole(fetched_from(here, end), end).readable.end == end
    unsettled = fetched_from(here, end).to_go_on()
    assert whole(unsettled, 5).readable.end == 5
