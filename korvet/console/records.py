"""Records of a topic as the console shows them: a page from an offset on, and one record whole.

A page begins at an offset, a time, the first record or the newest ones, and is bounded in records and bytes, whatever
the log contains. Offsets are text, because a browser's numbers are exact only to 2**53. Keys, values and headers are
text if they are UTF-8, else base64.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from korvet.admin.errors import (
    AdminError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.types import LogRecord, LogSlice, TopicPartition, settled
from korvet.console.api_client import ApiClient
from korvet.console.query import BadRequestError, Query, whole
from korvet.errors import ErrorCode

RECORDS_MAX = 200
PARTITIONS_MAX = 64

_PAGE_BYTES = 512 * 1024
_DECOMPRESSED_BYTES_MAX = 16 * 1024 * 1024
_WHOLE_BYTES, _WHOLE_HEADERS_MAX = 1024 * 1024, 1000
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1
_ROUNDS_MAX = 8
"""The reads for a page from a position on; one of the newest records is read until the end."""
_REMOTE_WAIT_MS = 500
_SECONDS_KEPT = 1.0
"""The time of a request that is kept for the answer when there is nothing more to read."""
_CHARACTER_BYTES_MAX = 4


Row = dict[str, Any]


class _LogRange(NamedTuple):
    start: int
    end: int


class _Cut(NamedTuple):
    """How much of a record is shown."""

    key_bytes: int = 256
    value_bytes: int = 2048
    header_bytes: int = 256
    headers_max: int = 16


def records(client: ApiClient, query: Query) -> dict[str, Any]:
    """Return a page of records, where the next one begins, and what is missing.

    `problems`: which offsets cannot be read, and why; `unfinished`: the partitions that have more of the newest records
    than there was time to read.

    `topic`; `partition`, or all of them; `at`: where to begin, as in `next` of the page before, or `seek`: earliest,
    newest, offset or time with the offset or time (ms) in `to`; `count` of records.
    Raises AdminError, BadRequestError.
    """
    partitions = _partitions(client, query)
    count = query.number("count", 50, 1, RECORDS_MAX)
    logs = _logs(client, partitions)
    if query.text("at", "") or query.text("seek", "newest") != "newest":
        positions = query.text("at", "")
        begin = _positions(positions, partitions) if positions else _seek(client, query, logs)
        # Records before the position may have been deleted since, and the topic may have been created again.
        at = {
            partition: min(max(begin[partition], logs[partition].start), logs[partition].end)
            for partition in partitions
        }
        rows_by_partition, problems = _read(client, at, logs, max(1, count // len(at)))
        rows = list(chain.from_iterable(rows_by_partition.values()))
        unfinished: list[int] = []
    else:
        rows, at, problems, unfinished = _newest(client, logs, count)
    return {
        "records": sorted(rows, key=_age),
        "next": ",".join(f"{position.partition}:{offset}" for position, offset in at.items()),
        "logs": [
            {
                "partition": position.partition,
                "start": str(log.start),
                "end": str(log.end),
                "at": str(at[position]),
            }
            for position, log in logs.items()
        ],
        "problems": problems,
        "unfinished": sorted(unfinished),
    }


def record(client: ApiClient, query: Query) -> dict[str, Any]:
    """Return one record, with as much of it as a browser can hold. Raises AdminError, BadRequestError."""
    partition = TopicPartition(query.text("topic"), query.number("partition", None, 0, _PARTITION_MAX))
    offset = query.number("offset", None, 0, _OFFSET_MAX)
    pieces = client.records.read({partition: offset}, bytes_max=1, **_limits(1, _REMOTE_WAIT_MS))
    for item in settled(pieces)[partition].records:
        if item.offset == offset:
            return _row(partition, item, _Cut(_WHOLE_BYTES, _WHOLE_BYTES, _WHOLE_BYTES, _WHOLE_HEADERS_MAX))
    message = f"partition {partition} has no record at offset {offset}"
    raise OffsetOutOfRangeError(ErrorCode.OFFSET_OUT_OF_RANGE, message)


def _limits(records_max: int, wait_ms: int) -> dict[str, int]:
    return {
        "decompressed_bytes_max": _DECOMPRESSED_BYTES_MAX,
        "records_max": records_max,
        "wait_ms": wait_ms,
    }


def _partitions(client: ApiClient, query: Query) -> list[TopicPartition]:
    name = query.text("topic")
    described = settled(client.topics.describe([name]))[name]
    partitions = [TopicPartition(name, item.partition) for item in described.partitions]
    wanted = query.text("partition", "all")
    if wanted == "all":
        if len(partitions) > PARTITIONS_MAX:
            raise BadRequestError(f"{name} has {len(partitions)} partitions: choose one of them")
        return partitions
    partition = TopicPartition(name, whole(wanted, "partition", 0, _PARTITION_MAX))
    if partition not in partitions:
        message = f"partition {partition} does not exist"
        raise UnknownTopicOrPartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return [partition]


def _logs(client: ApiClient, partitions: list[TopicPartition]) -> dict[TopicPartition, _LogRange]:
    starts = settled(client.offsets.at(dict.fromkeys(partitions, EARLIEST)))
    ends = settled(client.offsets.at(dict.fromkeys(partitions, LATEST)))
    return {
        partition: _LogRange(starts[partition].offset, ends[partition].offset) for partition in partitions
    }


def _positions(text: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Parse `0:17,1:4`. Raises BadRequestError."""
    pairs = [word.partition(":") for word in text.split(",")]
    positions = {
        whole(index, "at", 0, _PARTITION_MAX): whole(offset, "at", 0, _OFFSET_MAX)
        for index, _, offset in pairs
    }
    # Partitions that were added since are read from their first record.
    return {partition: positions.get(partition.partition, 0) for partition in partitions}


def _seek(
    client: ApiClient, query: Query, logs: Mapping[TopicPartition, _LogRange]
) -> dict[TopicPartition, int]:
    seek = query.text("seek")
    if seek == "earliest":
        return {partition: log.start for partition, log in logs.items()}
    if seek == "offset":
        return dict.fromkeys(logs, query.number("to", None, 0, _OFFSET_MAX))
    if seek == "time":
        timestamp = query.number("to", None, 0, _OFFSET_MAX)
        offsets = settled(client.offsets.at(dict.fromkeys(logs, timestamp)))
        # -1 if all records are older.
        return {
            partition: offsets[partition].offset if offsets[partition].offset >= 0 else log.end
            for partition, log in logs.items()
        }
    raise BadRequestError("seek must be earliest, newest, offset or time")


def _newest(
    client: ApiClient, logs: Mapping[TopicPartition, _LogRange], count: int
) -> tuple[list[Row], dict[TopicPartition, int], list[str], list[int]]:
    """Return the newest records of all partitions together, the positions after them, problems, and the unfinished.

    Each partition gives its last ones in equal shares. One whose whole share is among the newest may have more of them.
    """
    share = -(-count // len(logs))
    at = {partition: _offset_of_last(client, partition, log, share) for partition, log in logs.items()}
    earlier = {partition: _LogRange(logs[partition].start, begin) for partition, begin in at.items()}
    rows_by_partition, problems = _read(client, at, logs, share, rounds_max=_OFFSET_MAX)
    unfinished: list[int] = []
    if client.deadline().left() < _SECONDS_KEPT:
        unfinished += [
            key.partition
            for key, log in logs.items()
            if at[key] < log.end and len(rows_by_partition[key]) < share
        ]
    rows = _newest_of(rows_by_partition, count)
    known = {(row["partition"], row["offset"]) for row in rows}
    for partition, log in earlier.items():
        last = rows_by_partition[partition]
        left = count - len(last)
        if (
            not last
            or not left
            or log.start == log.end
            or (partition.partition, last[0]["offset"]) not in known
        ):
            continue
        if client.deadline().left() < _SECONDS_KEPT:
            unfinished.append(partition.partition)
            continue
        begin = {partition: _offset_of_last(client, partition, log, left)}
        more, failed = _read(client, begin, {partition: log}, left, rounds_max=_OFFSET_MAX)
        last[:0] = more[partition]
        problems += failed
    return _newest_of(rows_by_partition, count), at, problems, unfinished


def _offset_of_last(client: ApiClient, partition: TopicPartition, log: _LogRange, count: int) -> int:
    return client.records.offset_of_last(
        partition, log.start, log.end, count, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX
    )


def _newest_of(rows_by_partition: Mapping[TopicPartition, list[Row]], count: int) -> list[Row]:
    return sorted(chain.from_iterable(rows_by_partition.values()), key=_age)[-count:]


def _age(row: Row) -> tuple[int, int, int]:
    return row["timestamp"], row["partition"], int(row["offset"])


def _read(
    client: ApiClient,
    offsets: dict[TopicPartition, int],
    logs: Mapping[TopicPartition, _LogRange],
    share: int,
    *,
    rounds_max: int = _ROUNDS_MAX,
) -> tuple[dict[TopicPartition, list[Row]], list[str]]:
    """Return the records from `offsets` on, which is moved past them, and why partitions could not be read.

    Each partition has its share of the page, so that none starves the others.
    """
    rows_by_partition: dict[TopicPartition, list[Row]] = {partition: [] for partition in offsets}
    problems: list[str] = []
    wanted = {partition: offset for partition, offset in offsets.items() if offset < logs[partition].end}
    wait_ms = 0
    for _ in range(rounds_max):
        if not wanted or client.deadline().left() < _SECONDS_KEPT:
            break
        outcomes = client.records.read(wanted, bytes_max=_PAGE_BYTES, **_limits(share, wait_ms))
        # A broker that needs more time for archived records returns them with a later fetch.
        wait_ms = 0 if any(_moves(item, wanted[key]) for key, item in outcomes.items()) else _REMOTE_WAIT_MS
        failed: set[TopicPartition] = set()
        for partition, outcome in outcomes.items():
            if not isinstance(outcome, LogSlice):
                problems.append(f"offset {offsets[partition]}: {outcome}")
                if outcome.next_offset is not None:
                    # A batch that cannot be shown must not hide the records after it.
                    offsets[partition] = outcome.next_offset
                else:
                    failed.add(partition)
                continue
            room, end = share - len(rows_by_partition[partition]), logs[partition].end
            taken = [record for record in outcome.records[:room] if record.offset < end]
            # Only what is shown of them is kept: all of a page may be large.
            rows_by_partition[partition] += [_row(partition, record) for record in taken]
            more = len(outcome.records) > len(taken)
            offsets[partition] = outcome.records[len(taken)].offset if more else outcome.next_offset
        wanted = {
            partition: offsets[partition]
            for partition in wanted
            if partition not in failed
            and len(rows_by_partition[partition]) < share
            and offsets[partition] < logs[partition].end
        }
    return rows_by_partition, problems


def _moves(outcome: LogSlice | AdminError, offset: int) -> bool:
    return isinstance(outcome, AdminError) or outcome.next_offset > offset


def _row(partition: TopicPartition, record: LogRecord, cut: _Cut = _Cut()) -> Row:  # noqa: B008 - immutable
    headers = [
        {"name": name[: cut.header_bytes], "value": content(value, cut.header_bytes)}
        for name, value in record.headers[: cut.headers_max]
    ]
    return {
        "partition": partition.partition,
        "offset": str(record.offset),
        "timestamp": record.timestamp,
        "key": content(record.key, cut.key_bytes),
        "value": content(record.value, cut.value_bytes),
        "headers": headers,
        "header_count": len(record.headers),
    }


def content(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """Return the first bytes, as `text` or `base64`, and how many `bytes` there are in all; None for null."""
    if data is None:
        return None
    shown = data[:bytes_max]
    text = _text(shown, cut=len(data) > bytes_max)
    value = {"base64": base64.b64encode(shown).decode()} if text is None else {"text": text}
    return {"bytes": len(data), **value}


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return UTF-8 as text, without the part of a character at a cut."""
    for missing in range(_CHARACTER_BYTES_MAX if cut else 1):
        try:
            return data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None
