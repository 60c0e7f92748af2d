"""A producer's batch as an entry and back: its own bytes, compressed at rest or not, and entries that are none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import lz4.frame
import pytest
import redis
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.log.batch_format import batch_args, read_batches
from korvet.log.record_format import Arg, Entry
from korvet.protocol.records.batch import HEADER_BYTES
from korvet.topics.types import AtRest
from tests.support import batches, redis_servers
from tests.support.batches import CODECS, NONE, Record, batch, forged
from tests.support.log_bench import wire

STREAM = "korvet:orders:0"
LIMIT = 1 << 20
EPOCH_BYTES = slice(12, 16)
PLAIN = AtRest(codec="none")
AT_RESTS = [PLAIN, AtRest("lz4", 1), AtRest("zstd", 1)]
NOISE = random.Random(1).randbytes(4000)
PRODUCED = batch(
    b"x" * 2000, None, Record(b"", b"k", 7, (("h", None),)), producer_id=2**40, epoch=3, sequence=9
)


def flat(args: list[Arg]) -> list[bytes]:
    """Return arguments as Redis gives them back."""
    return [bytes(cast("memoryview", arg)) for arg in args]


@pytest.fixture(scope="module")
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis_servers.connected(redis_server) as made:
        yield made


VALUES = st.one_of(
    st.none(), st.binary(max_size=50), st.binary(min_size=1, max_size=3).map(lambda v: v * 900)
)
HEADERS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), VALUES), max_size=3
)
RECORDS = st.builds(
    Record, value=VALUES, key=VALUES, timestamp=st.integers(0, 2**62), headers=HEADERS.map(tuple)
)


@pytest.mark.slow
@pytest.mark.parametrize("at_rest", AT_RESTS, ids=lambda at_rest: at_rest.codec)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(RECORDS, min_size=1, max_size=8),
    codec=st.sampled_from(CODECS),
    base=st.integers(0, 2**53 - 10),
    epoch=st.integers(0, 2**31 - 1),
)
def test_every_byte_but_offset_and_epoch_survives_the_stream(
    client: Any, at_rest: AtRest, records: list[Record], codec: int, base: int, epoch: int
) -> None:
    produced = batch(*records, codec=codec)
    args = batch_args(memoryview(produced), codec, at_rest)
    client.delete(STREAM)
    client.execute_command("XADD", STREAM, f"0-{base + len(records)}", *args)
    entries = client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, STREAM)
    found, external = read_batches(entries, 2**53)
    assert (external, [one.base_offset for one in found]) == (0, [base])
    assert found[0].next_offset == base + len(records)
    assert found[0].size_bytes == len(produced)
    served = wire(found, epoch)
    assert served == base.to_bytes(8, "big") + produced[8:12] + epoch.to_bytes(4, "big") + produced[16:]
    # Reading it checks the CRC, with the fields that were patched.
    assert [one.offset for one in batches.read(served)] == list(range(base, base + len(records)))


def test_a_batch_is_stored_as_it_came() -> None:
    view = memoryview(PRODUCED)
    args = batch_args(view, NONE, PLAIN)
    assert args[0] == b"batch"
    assert args[1] is view
    assert len(args) == 2


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_an_uncompressed_batch_is_compressed_after_its_header(codec: Any) -> None:
    args = flat(batch_args(memoryview(PRODUCED), NONE, AtRest(codec, 1024)))
    assert args[0::2] == [b"batch", b"korvet.encoding"]
    assert args[3] == codec.encode()
    assert args[1][:HEADER_BYTES] == PRODUCED[:HEADER_BYTES]
    assert len(args[1]) < 300
    unpack = lz4.frame.decompress if codec == "lz4" else zstandard.decompress
    assert unpack(args[1][HEADER_BYTES:]) == PRODUCED[HEADER_BYTES:]


@pytest.mark.parametrize("at_rest", AT_RESTS[1:], ids=lambda at_rest: at_rest.codec)
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_its_producer_compressed_stays_as_it_is(at_rest: AtRest, codec: int) -> None:
    produced = batch(b"x" * 20_000, codec=codec)
    assert flat(batch_args(memoryview(produced), codec, at_rest)) == [b"batch", produced]


@pytest.mark.parametrize("at_rest", AT_RESTS[1:], ids=lambda at_rest: at_rest.codec)
def test_a_batch_that_would_not_be_smaller_stays_as_it_is(at_rest: AtRest) -> None:
    produced = batch(NOISE)
    assert flat(batch_args(memoryview(produced), NONE, at_rest)) == [b"batch", produced]


@pytest.mark.parametrize(("at_least", "fields"), [(0, 4), (1, 2)])
def test_a_batch_is_compressed_from_the_threshold_on(at_least: int, fields: int) -> None:
    threshold = len(PRODUCED) - HEADER_BYTES + at_least
    assert len(batch_args(memoryview(PRODUCED), NONE, AtRest("lz4", threshold))) == fields


def test_batches_are_read_up_to_the_end_and_no_further() -> None:
    entries: list[Entry] = [(b"0-%d" % end, [b"batch", forged(PRODUCED)]) for end in (3, 6, 9)]
    found, external = read_batches(entries, 6)
    assert ([one.base_offset for one in found], external) == ([0, 3], 0)


@pytest.mark.parametrize(
    "entry",
    [
        (b"0-6", [b"value", PRODUCED]),
        (b"0-6", [b"key", b"k", b"value", b"v", b"timestamp", b"5"]),
        (b"0-6", [b"", b""]),
    ],
)
def test_entries_of_others_are_counted_and_left_out(entry: Entry) -> None:
    entries = [(b"0-3", [b"batch", PRODUCED]), entry, (b"0-9", [b"batch", PRODUCED])]
    found, external = read_batches(entries, 2**53)
    assert ([one.base_offset for one in found], external) == ([0, 6], 1)


PACKED = flat(batch_args(memoryview(PRODUCED), NONE, AtRest("lz4", 1)))[1]
PACKED_ZSTD = flat(batch_args(memoryview(PRODUCED), NONE, AtRest("zstd", 1)))[1]
HEADER = PRODUCED[:HEADER_BYTES]
DAMAGED = {
    "empty": [b"batch", b""],
    "garbage": [b"batch", b"garbage"],
    "garbage as long as a header": [b"batch", b"\xff" * HEADER_BYTES],
    "zeros": [b"batch", bytes(200)],
    "text": [b"batch", b"This is no record batch at all. " * 10],
    "cut in its header": [b"batch", PRODUCED[: HEADER_BYTES - 1]],
    "cut after its header": [b"batch", HEADER],
    "cut by a byte": [b"batch", PRODUCED[:-1]],
    "with a byte more": [b"batch", PRODUCED + b"x"],
    "two batches": [b"batch", PRODUCED * 2],
    "an old format": [b"batch", forged(PRODUCED, magic=1)],
    "more records than offsets before it": [b"batch", forged(PRODUCED, last_offset_delta=13)],
    "a negative number of records": [b"batch", forged(PRODUCED, last_offset_delta=-2)],
    "an unknown marker": [b"batch", PACKED, b"korvet.encoding", b"br"],
    "the marker of another codec": [b"batch", PACKED, b"korvet.encoding", b"zstd"],
    "the marker of the other codec": [b"batch", PACKED_ZSTD, b"korvet.encoding", b"lz4"],
    "a marker where nothing is compressed": [b"batch", PRODUCED, b"korvet.encoding", b"lz4"],
    "no marker where something is compressed": [b"batch", PACKED],
    "another field than the marker": [b"batch", PACKED, b"other", b"lz4"],
    "a field after the marker": [b"batch", PACKED, b"korvet.encoding", b"lz4", b"other", b"x"],
    "a frame that is cut": [b"batch", PACKED[:-6], b"korvet.encoding", b"lz4"],
    "a frame of other bytes": [
        *(b"batch", HEADER + lz4.frame.compress(b"x" * 5000)),
        *(b"korvet.encoding", b"lz4"),
    ],
    "a bomb": [b"batch", HEADER + lz4.frame.compress(bytes(LIMIT + 1)), b"korvet.encoding", b"lz4"],
    "a bomb of zstd": [b"batch", HEADER + zstandard.compress(bytes(LIMIT + 1)), b"korvet.encoding", b"zstd"],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_batch_is_an_error_and_not_served(name: str) -> None:
    with pytest.raises(ValueError, match="0-13"):
        read_batches([(b"0-13", DAMAGED[name])], 2**53)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_frame_is_undone_to_the_length_in_the_header_whatever_that_is(codec: Any) -> None:
    produced = batch(bytes(80 << 20))  # more than record.decompressed.max.bytes, as a topic may allow
    args = flat(batch_args(memoryview(produced), NONE, AtRest(codec, 1)))
    assert len(args[1]) < len(produced) // 100
    [found], _ = read_batches([(b"0-1", args)], 2**53)
    assert found.size_bytes == len(produced)


@pytest.mark.parametrize(
    "entry", [(b"x", []), (b"0-x", [b"batch", PRODUCED]), (b"0-1", []), (b"0-1", None), (None, [])]
)
def test_what_is_no_entry_raises_one_of_the_declared_errors(entry: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        read_batches([entry], 2**53)
