"""The packed fields of a partition's state: Python and the scripts pack and unpack them alike, and refuse the same."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.log.packed import LOG_FIELD, KeptBatch, PackedLog, ProducerRow
from korvet.log.types import Appended
from korvet.protocol.records.batch import SEQUENCES
from korvet.topics.entry_ids import OFFSETS_END
from tests.lua.support import run
from tests.support.log_bench import TOPIC_ID, Bench
from tests.support.partition_state import log_of, producers_of, set_producer

PRODUCER = 7
OFFSETS = st.integers(0, OFFSETS_END)

alike = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def logs(draw: st.DrawFn) -> PackedLog:
    next_offset = draw(OFFSETS)
    below = st.integers(-1, next_offset)
    largest = draw(st.integers(-1, OFFSETS_END))
    return PackedLog(
        next_offset=next_offset,
        start=draw(st.integers(0, next_offset)),
        first=draw(below),
        lake_start=draw(below),
        size_bytes=draw(OFFSETS),
        records=draw(OFFSETS),
        entries=draw(OFFSETS),
        largest=largest,
        interval=draw(st.integers(-1, largest)),
        epoch=draw(st.integers(-1, 2**31 - 1)),
        moving=draw(st.integers(0, 1)),
    )


ROWS = st.builds(
    ProducerRow,
    epoch=st.integers(0, 2**15 - 1),
    next_sequence=st.integers(0, SEQUENCES - 1),
    last_ms=st.integers(0, 2**48 - 1),
    transaction=st.just(-1),
    first_offset=st.just(-1),
    batches=st.lists(st.builds(KeptBatch, st.integers(1, 2**32 - 1), OFFSETS), max_size=5).map(tuple),
)
ROWS_WITH_A_TRANSACTION = st.builds(
    lambda row, number, first: row._replace(transaction=number, first_offset=first),
    ROWS,
    st.integers(1, OFFSETS_END),
    st.integers(-1, OFFSETS_END),
)

# Lua's numbers are doubles, in which 2^53 + 1 is 2^53.
FAR = st.sampled_from([0, 5, OFFSETS_END, OFFSETS_END + 2, 2**63 - 1])
SIGNED = st.one_of(st.just(-1), FAR)
ANY_LOG = st.builds(
    PackedLog,
    *(FAR, FAR, SIGNED, SIGNED, FAR, FAR, FAR, SIGNED, SIGNED),
    epoch=st.integers(-1, 9),
    moving=st.integers(0, 3),
).map(PackedLog.pack)


def begin(bench: Bench, end: int) -> Any:
    """Run a script that unpacks the counters, and packs them again without the interval."""
    partition = bench.partition
    keys = [partition.state, partition.index_key, *partition.compacted]
    bench.raw.delete(partition.index_key)
    return run(bench.raw, "compaction/begin", keys, [TOPIC_ID, "token", 0, end])


@alike
@given(log=logs())
@example(PackedLog._make([*[OFFSETS_END] * 9, 2**31 - 1, 1]))
def test_scripts_read_and_write_the_counters_of_a_log(batch_bench: Bench, log: PackedLog) -> None:
    state = batch_bench.partition.state
    batch_bench.raw.hset(state, LOG_FIELD, log.pack())
    assert log_of(batch_bench.raw, state) == log
    outcome, _, start, end, row = begin(batch_bench, log.next_offset)
    assert (outcome, int(start), int(end)) == (b"BEGUN", log.start, log.next_offset)
    assert tuple(map(int, row.split(b":"))) == (log.records, log.size_bytes, log.largest, log.interval)
    assert log_of(batch_bench.raw, state) == log._replace(interval=-1)


@alike
@given(packed=st.one_of(ANY_LOG, st.binary(max_size=80), st.binary(min_size=77, max_size=77)))
def test_scripts_refuse_the_counters_that_are_malformed(batch_bench: Bench, packed: bytes) -> None:
    batch_bench.raw.hset(batch_bench.partition.state, LOG_FIELD, packed)
    try:
        log = PackedLog.unpack(packed)
    except ValueError:
        with pytest.raises(redis.ResponseError, match=r"KAFKA_STORAGE_ERROR .*: the field log is malformed"):
            begin(batch_bench, 0)
    else:
        assert begin(batch_bench, log.next_offset)[0] == b"BEGUN"


def appended(bench: Bench, row: ProducerRow) -> Appended | KafkaError:
    """Append the batch of one record that comes next, in the transaction that is open if one is."""
    number = None if row.first_offset < 0 else row.transaction
    made = bench.made(b"v", producer=PRODUCER, epoch=row.epoch, sequence=row.next_sequence, number=number)
    [outcome] = bench.logs.append([made])
    assert not isinstance(outcome, Exception) or isinstance(outcome, KafkaError)
    return outcome


@alike
@given(row=st.one_of(ROWS, ROWS_WITH_A_TRANSACTION))
def test_scripts_read_and_write_the_row_of_a_producer(batch_bench: Bench, row: ProducerRow) -> None:
    raw, state = batch_bench.raw, batch_bench.partition.state
    set_producer(raw, state, PRODUCER, row)
    assert producers_of(raw, state) == {PRODUCER: row}
    outcome = appended(batch_bench, row)
    assert isinstance(outcome, Appended), outcome
    assert not outcome.duplicate
    written = producers_of(raw, state)[PRODUCER]
    assert written == row._replace(
        next_sequence=(row.next_sequence + 1) % SEQUENCES,
        last_ms=written.last_ms,
        batches=(KeptBatch(1, outcome.base_offset), *row.batches[:4]),
    )


@alike
@given(packed=st.one_of(st.binary(max_size=100), st.sampled_from(range(100)).map(bytes)))
def test_scripts_refuse_the_row_that_is_malformed(batch_bench: Bench, packed: bytes) -> None:
    batch_bench.raw.hset(batch_bench.partition.state, PRODUCER, packed)
    try:
        ProducerRow.unpack(packed)
    except ValueError:
        is_malformed = True
    else:
        is_malformed = False
    outcome = appended(batch_bench, ProducerRow(0, 0, 0))
    refusal = KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR, f"{batch_bench.partition.state}: producer {PRODUCER} is malformed"
    )
    assert (str(outcome) == str(refusal)) == is_malformed
