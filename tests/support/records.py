"""Records as tests send them to a broker and get them back, with any client.

Defines "exactly those": every record once, in order within its partition, at the acknowledged
offset, with its key, value, headers and timestamp. Knows no client and no wire format.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 4
TIMESTAMP_FIRST_MS = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]

_names = itertools.count()


class Sample(NamedTuple):
    """One record to send."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class Received(NamedTuple):
    """One record as a consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


def topic_name(prefix: str) -> str:
    """Return a topic that no other test of this run uses."""
    return f"{prefix}-{next(_names)}"


def samples(start: int, count: int, *, null_headers: bool = True) -> list[Sample]:
    """Return records numbered from `start`, one partition after the other, no two alike.

    Every tenth has headers: none of a name but once, repeated names, an empty value and, where the client can send
    it, a null one. A few have a null key, a null value or an empty one.
    """
    return [_sample(number, null_headers) for number in range(start, start + count)]


def _sample(number: int, null_headers: bool) -> Sample:  # noqa: FBT001 - asked for by name in samples()
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number)]
    if number % 10 == 3:
        headers += [("again", b"first"), ("n", bytes(range(256))), ("again", b""), ("schlüssel", b"\r\n")]
        if null_headers:
            headers += [("again", None)]
    elif number % 10 == 7:
        headers = []
    key: bytes | None = b"key-%d" % (number % 997)
    value: bytes | None = b"value %d " % number + b"%x" % (number * 2_654_435_761) * 8
    if number % 1000 == 13:
        key = None
    elif number % 1000 == 14:
        value = None
    elif number % 1000 == 15:
        value = b""
    elif number % 1000 == 16:
        value = b"long %d " % number * 200
    return Sample(number % PARTITIONS, key, value, tuple(headers), TIMESTAMP_FIRST_MS + number // 3)


def check_exactly(
    sent: Iterable[Sample], received: Sequence[Received], offsets: Iterable[tuple[int, int]] | None = None
) -> None:
    """Fail unless `received` is `sent`: nothing lost, doubled, changed or out of order within its partition.

    `offsets` are the partition and offset of each acknowledgement, if the client reports them.
    """
    expected: dict[int, list[Sample]] = defaultdict(list)
    for sample in sent:
        expected[sample.partition].append(sample)
    got: dict[int, list[Received]] = defaultdict(list)
    for record in received:
        got[record.partition].append(record)
    assert sorted(got) == sorted(expected)
    for partition, records in got.items():
        numbers = [record.offset for record in records]
        assert all(one < two for one, two in itertools.pairwise(numbers)), f"offsets of {partition} go back"
        bare = [Sample(partition, *record[2:]) for record in records]
        for place, (want, have) in enumerate(zip(expected[partition], bare, strict=False)):
            assert want == have, f"record {place} of partition {partition}"
        assert len(bare) == len(expected[partition]), f"records of partition {partition}"
    if offsets is not None:
        assert sorted(offsets) == sorted((record.partition, record.offset) for record in received)
