"""The append scripts with several batches in one call: as if each had come in a call of its own."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.log.packed import ProducerRow
from korvet.topics.entry_ids import OFFSETS_END
from tests.lua.support import ABORTED, INDEX, OPEN, STREAM, Appended, BatchLog, Log
from tests.support.append_scripts import Batch


def results(outcomes: list[Appended | redis.ResponseError]) -> list[tuple[str, int]]:
    """Return for each batch its outcome, or the first word of its error, and its base offset."""
    return [
        (outcome.outcome.decode(), outcome.base)
        if isinstance(outcome, Appended)
        else (str(outcome).split(" ")[0], 0)
        for outcome in outcomes
    ]


def test_batches_lie_one_after_the_other_and_are_announced_once(raw_redis: Any, log: Log) -> None:
    first = log.appended("0")
    with raw_redis.pubsub() as listener:
        listener.ssubscribe(STREAM)
        answer = log.append_all(log.batch("a"), log.batch("b", "c"), log.batch("d", "e", "f"))
        raw_redis.spublish(STREAM, "end")
        heard = [listener.get_message(timeout=10)["data"] for _ in range(3)]
    assert heard == [1, str(log.next()).encode(), b"end"]
    [one, two, three] = results(answer)
    assert {outcome for outcome, _ in (one, two, three)} == {"APPENDED"}
    assert first < one[1]
    assert (two[1], three[1]) == (one[1] + 1, one[1] + 3)
    assert log.values() == ["0", "a", "b", "c", "d", "e", "f"]
    assert log.offsets() == [first, *range(one[1], one[1] + 6)]
    assert log.next() == one[1] + 6
    assert log.log.size_bytes == 400


def test_only_the_batches_are_refused_for_which_no_offsets_are_left(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    log.change(next_offset=OFFSETS_END - 3)
    answer = log.append_all(log.batch("a", "b"), log.batch("too", "many"), log.batch("c"), log.batch("d"))
    at = OFFSETS_END - 3
    refused = ("USED_UP", 0)
    assert results(answer) == [("APPENDED", at), refused, ("APPENDED", at + 2), refused]
    assert log.next() == OFFSETS_END


BATCH = st.tuples(
    st.integers(1, 4),  # records
    st.sampled_from([-1, 7, 8]),  # producer
    st.integers(0, 1),  # epoch
    st.integers(0, 4),  # sequence
    st.integers(0, 9),  # largest timestamp
    st.sampled_from([100, 300_000]),  # bytes as stored
    st.sampled_from(["0", "0", "t0", "t1", "t2", "t3", "c0", "a0", "c-1", "a-1", "c1", "a1", "c2", "a2"]),
)


def batch_of(log: Log, drawn: tuple[Any, ...]) -> Batch:
    """Return the batch, or the marker, that was drawn; without a producer there is no transaction."""
    count, producer, epoch, sequence, timestamp, size, transaction = drawn
    is_marker = producer >= 0 and transaction[0] in "ca"
    return log.batch(
        *"v" * (1 if is_marker else count),
        producer=producer,
        epoch=epoch,
        sequence=-1 if is_marker else sequence,
        max_timestamp=timestamp,
        transaction=transaction if producer >= 0 else "0",
        size=size,
    )


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(BATCH, min_size=1, max_size=12))
def test_batches_in_one_call_have_the_results_that_they_have_in_calls_of_their_own(
    raw_redis: Any, log: Log, drawn: list[tuple[Any, ...]]
) -> None:
    outcome = []
    for together in (False, True):
        raw_redis.flushall()
        log.create()
        batches = [batch_of(log, item) for item in drawn]
        calls = [batches] if together else [[batch] for batch in batches]
        outcome.append(seen(log, [result for call in calls for result in results(log.append_all(*call))]))
    assert outcome[0] == outcome[1]


def seen(log: Log, outcomes: list[tuple[Any, int]]) -> Any:
    """Return the results and what the log holds; in the place of an offset, how many records lie below it."""
    offsets = log.offsets()

    def below(offset: Any) -> int:
        return bisect_left(offsets, int(offset))

    def without_time(row: ProducerRow) -> ProducerRow:
        batches = tuple(batch._replace(base_offset=below(batch.base_offset)) for batch in row.batches)
        return row._replace(last_ms=0, first_offset=below(row.first_offset), batches=batches)

    state, zrange = log.state(), log.client.zrange
    counters = log.log._replace(next_offset=below(log.next()), first=below(log.log.first))
    ends = {name: below(state[name]) for name in ("open", "aborted") if name in state}
    begun = {name: below(offset) for name, offset in zrange(OPEN, 0, -1, withscores=True)}
    # How far a row covers the log depends on what else the call has ended.
    aborted = [
        (*name.split(b":")[:1], below(name.split(b":")[1]), below(end))
        for name, end in zrange(ABORTED, 0, -1, withscores=True)
    ]
    producers = {producer: without_time(row) for producer, row in log.producers.items()}
    placed = [(outcome, below(base)) for outcome, base in outcomes]
    index = zrange(INDEX, 0, -1)
    return placed, counters, "reindex" in state, ends, begun, aborted, producers, index, log.values()
