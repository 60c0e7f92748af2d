"""The append scripts with several batches in one call: as if each had come in a call of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lua.support import INDEX, OFFSETS_END, PRODUCERS, STATE, STREAM, BatchLog, Log, unchanged

LogOf = Callable[[Any], Log]
FORMATS = pytest.mark.parametrize("log_of", [Log, BatchLog])


def results(answer: list[Any]) -> list[tuple[Any, int]]:
    """Return for each batch its outcome, or the first word of its error, and its base offset."""
    assert answer[0] == b"APPENDED"
    return [
        (str(outcome).split(" ")[0] if isinstance(outcome, Exception) else outcome.decode(), int(base))
        for outcome, base in zip(answer[4::3], answer[5::3], strict=True)
    ]


@FORMATS
def test_batches_lie_one_after_the_other_and_are_announced_once(raw_redis: Any, log_of: LogOf) -> None:
    log = log_of(raw_redis)
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
    assert log.state()["bytes"] == "400"


@FORMATS
def test_what_is_wrong_with_one_batch_is_its_own(raw_redis: Any, log_of: LogOf) -> None:
    log = log_of(raw_redis)
    raw_redis.hset(PRODUCERS, "9", "garbage")
    answer = log.append_all(
        log.batch("a", producer=7),
        log.batch("wrong", producer=7, sequence=5),
        log.batch("b", producer=7, sequence=1),
        log.batch("wrong", producer=9),
        log.batch("c"),
        log.batch("wrong", producer=7, epoch=3, sequence=2),
        log.batch("d", producer=7, epoch=1),
        log.batch("wrong", producer=7, epoch=0, sequence=2),
    )
    base = results(answer)[0][1]
    assert results(answer) == [
        ("APPENDED", base),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", 0),
        ("APPENDED", base + 1),
        ("KAFKA_STORAGE_ERROR", 0),
        ("APPENDED", base + 2),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", 0),
        ("APPENDED", base + 3),
        ("INVALID_PRODUCER_EPOCH", 0),
    ]
    assert log.values() == ["a", "b", "c", "d"]


@FORMATS
def test_a_batch_that_comes_twice_in_one_call_is_written_once(raw_redis: Any, log_of: LogOf) -> None:
    log = log_of(raw_redis)
    batches = [log.batch("a", "b", producer=7), log.batch("c", producer=7, sequence=2)]
    answer = log.append_all(*batches, *batches)
    base = results(answer)[0][1]
    appended = [("APPENDED", base), ("APPENDED", base + 2)]
    assert results(answer) == [*appended, ("DUPLICATE", base), ("DUPLICATE", base + 2)]
    with unchanged(raw_redis):
        assert results(log.append_all(*batches)) == [("DUPLICATE", base), ("DUPLICATE", base + 2)]
    assert log.values() == ["a", "b", "c"]


def test_only_the_batches_are_refused_for_which_no_offsets_are_left(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    raw_redis.hset(STATE, "next", OFFSETS_END - 3)
    answer = log.append_all(log.batch("a", "b"), log.batch("too", "many"), log.batch("c"), log.batch("d"))
    at = OFFSETS_END - 3
    refused = ("KAFKA_STORAGE_ERROR", 0)
    assert results(answer) == [("APPENDED", at), refused, ("APPENDED", at + 2), refused]
    assert log.next() == OFFSETS_END


@FORMATS
def test_nothing_of_a_call_is_written_if_its_first_entry_cannot_be(raw_redis: Any, log_of: LogOf) -> None:
    log = log_of(raw_redis)
    log.appended("a")
    raw_redis.delete(STREAM)
    raw_redis.rpush(STREAM, "of somebody else")
    with unchanged(raw_redis), pytest.raises(redis.ResponseError, match="wrong kind of value"):
        log.append_all(log.batch("b", producer=7), log.batch("c", producer=7, sequence=1))


BATCH = st.tuples(
    st.integers(1, 4),  # records
    st.sampled_from([-1, 7, 8]),  # producer
    st.integers(0, 1),  # epoch
    st.integers(0, 6),  # sequence
    st.integers(0, 9),  # largest timestamp
    st.sampled_from([100, 300_000]),  # bytes as stored
)


@FORMATS
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(BATCH, min_size=1, max_size=12))
def test_batches_in_one_call_have_the_results_that_they_have_in_calls_of_their_own(
    raw_redis: Any, log_of: LogOf, batches: list[tuple[int, ...]]
) -> None:
    raw_redis.flushall()
    log = log_of(raw_redis)
    made = []
    for count, producer, epoch, sequence, timestamp, size in batches:
        batch = log.batch(
            *"v" * count, producer=producer, epoch=epoch, sequence=sequence, max_timestamp=timestamp
        )
        batch[5] = size
        made.append(batch)
    one_by_one = [results(log.append_all(batch))[0] for batch in made]
    alone = seen(log, one_by_one)
    raw_redis.flushall()
    log = log_of(raw_redis)
    assert seen(log, results(log.append_all(*made))) == alone


def seen(log: Log, outcomes: list[tuple[Any, int]]) -> Any:
    """Return the results and what the log holds, offsets as the number of the record that has it, and no times."""
    offsets = log.offsets()
    place = {offset: at for at, offset in enumerate(offsets)} | {0: 0} if offsets else {0: 0}
    state = log.state()
    rows = {
        producer: [(batch.split(b"@")[0], place[int(batch.split(b"@")[1])]) for batch in row.split()[2:]]
        for producer, row in log.client.hgetall(PRODUCERS).items()
    }
    index = [row for row, _ in log.client.zrange(INDEX, 0, -1, withscores=True)]
    numbers = {name: state.get(name) for name in ("bytes", "records", "max_timestamp", "interval", "reindex")}
    return [(outcome, place[base]) for outcome, base in outcomes], rows, index, numbers, len(offsets)
