"""Records of a topic as the console shows them: a page from a place on, and one record whole.

Knows where pages begin: at an offset, a time, the first record or the newest. A page is bounded in records and in
bytes, whatever lies in the log. Offsets are told as text: a browser's numbers end at 2**53.

Keys, values and headers as JSON can hold them: text where they are UTF-8, base64 where they are not.

Knows bytes, and that no more of them is told than a page shows. What is made of the text is the browser's business.

Where the newest records of a log begin, when no offset says how many records lie behind it.

Knows pieces of a log. It reads stretches back from the end: longer ones as long as they hold too few records, shorter
ones where they hold too many. Where offsets are dense the first stretch is the answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from korvet.admin.errors import (
    AdminError,
    AnswerTooLargeError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.records import LogRecord, LogSlice
from korvet.admin.types import TopicPartition, settled
from korvet.console.api_client import ApiClient
from korvet.console.query import BadRequestError, Query, whole
from korvet.errors import ErrorCode

_CHARACTER_BYTES_MAX = 4


def content(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """Return the first bytes, as `text` or `base64`, with how many `bytes` there are in all; None for null."""
    if data is None:
        return None
    shown = data[:bytes_max]
    row: dict[str, Any] = {"bytes": len(data)}
    text = _text(shown, cut=len(data) > bytes_max)
    if text is None:
        row["base64"] = base64.b64encode(shown).decode()
    else:
        row["text"] = text
    return row


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return UTF-8 as text, without half a character where it was cut."""
    for missing in range(_CHARACTER_BYTES_MAX if cut else 1):
        try:
            return data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None


RECORDS_MAX = 200
PARTITIONS_MAX = 64

_PAGE_BYTES = 512 * 1024
_DECOMPRESSED_BYTES_MAX = 16 * 1024 * 1024
_KEY_BYTES, _VALUE_BYTES, _HEADER_BYTES, _HEADERS_MAX = 256, 2048, 256, 16
_WHOLE_BYTES, _WHOLE_HEADERS_MAX = 1024 * 1024, 1000
_OFFSET_MAX = 2**63 - 1
_ROUNDS_MAX = 8
_COLD_WAIT_MS = 500
_SECONDS_KEPT = 1.0
"""Of a request's time: what is left for the answer when there was no more to be read in the rest."""


class _Log(NamedTuple):
    start: int
    end: int


def records(asker: ApiClient, query: Query) -> dict[str, Any]:
    """Return a page of records, and where the next one begins.

    `topic`; `partition`, or all of them; `at`: where to begin, as `next` of the page before has it, or `seek`:
    earliest, newest, offset or time with the offset or time (ms) in `to`; `count` of records.
    Raises AdminError, BadQuestionError.
    """
    places = _places(asker, query)
    count = query.number("count", 50, 1, RECORDS_MAX)
    logs = _logs(asker, places)
    begin = (
        _positions(query.text("at"), places) if query.text("at", "") else _sought(asker, query, logs, count)
    )
    # A log may have lost its begin meanwhile, and have been made anew.
    at = {place: min(max(begin[place], logs[place].start), logs[place].end) for place in places}
    found, problems = _read(asker, at, logs, count)
    rows = [_row(place, each) for place, some in found.items() for each in some]
    rows.sort(key=lambda row: (row["timestamp"], row["partition"], int(row["offset"])))
    return {
        "records": rows,
        "next": ",".join(f"{place.partition}:{offset}" for place, offset in at.items()),
        "logs": [
            {"partition": place.partition, "start": str(log.start), "end": str(log.end), "at": str(at[place])}
            for place, log in logs.items()
        ],
        "problems": problems,
    }


def record(asker: ApiClient, query: Query) -> dict[str, Any]:
    """Return one record with all of it that a browser can bear. Raises AdminError, BadQuestionError."""
    place = TopicPartition(query.text("topic"), query.number("partition", None, 0, 2**31 - 1))
    offset = query.number("offset", None, 0, _OFFSET_MAX)
    piece = settled(asker.records.read({place: offset}, bytes_max=1, **_limits(1, _COLD_WAIT_MS)))[place]
    for each in piece.records:
        if each.offset == offset:
            return _row(place, each, _WHOLE_BYTES, _WHOLE_BYTES, _WHOLE_BYTES, _WHOLE_HEADERS_MAX)
    raise OffsetOutOfRangeError(ErrorCode.OFFSET_OUT_OF_RANGE, f"partition {place} has no record {offset}")


def _limits(records_max: int, wait_ms: int = 0) -> dict[str, int]:
    return {
        "decompressed_bytes_max": _DECOMPRESSED_BYTES_MAX,
        "records_max": records_max,
        "wait_ms": wait_ms,
    }


def _places(asker: ApiClient, query: Query) -> list[TopicPartition]:
    name = query.text("topic")
    described = settled(asker.topics.describe([name]))[name]
    every = [TopicPartition(name, each.partition) for each in described.partitions]
    wanted = query.text("partition", "all")
    if wanted == "all":
        if len(every) > PARTITIONS_MAX:
            raise BadRequestError(f"{name} has {len(every)} partitions: choose one of them")
        return every
    place = TopicPartition(name, whole(wanted, "partition", 0, 2**31 - 1))
    if place not in every:
        raise UnknownTopicOrPartitionError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {place}"
        )
    return [place]


def _logs(asker: ApiClient, places: list[TopicPartition]) -> dict[TopicPartition, _Log]:
    starts = settled(asker.offsets.at(dict.fromkeys(places, EARLIEST)))
    ends = settled(asker.offsets.at(dict.fromkeys(places, LATEST)))
    return {place: _Log(starts[place].offset, ends[place].offset) for place in places}


def _positions(text: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Read `0:17,1:4`, for each of the partitions. Raises BadQuestionError."""
    pairs = [each.partition(":") for each in text.split(",")]
    found = {
        whole(index, "at", 0, 2**31 - 1): whole(offset, "at", 0, _OFFSET_MAX) for index, _, offset in pairs
    }
    # Partitions that have been added since are read from their begin.
    return {place: found.get(place.partition, 0) for place in places}


def _sought(
    asker: ApiClient, query: Query, logs: Mapping[TopicPartition, _Log], count: int
) -> dict[TopicPartition, int]:
    seek = query.text("seek", "newest")
    if seek == "earliest":
        return {place: log.start for place, log in logs.items()}
    if seek == "offset":
        return dict.fromkeys(logs, query.number("to", None, 0, _OFFSET_MAX))
    if seek == "time":
        found = settled(asker.offsets.at(dict.fromkeys(logs, query.number("to", None, 0, _OFFSET_MAX))))
        return {
            place: found[place].offset if found[place].offset >= 0 else log.end for place, log in logs.items()
        }
    if seek != "newest":
        raise BadRequestError("seek: earliest, newest, offset or time")
    share = max(1, count // len(logs))
    return {
        place: asker.records.offset_of_last(
            place, log.start, log.end, share, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX
        )
        for place, log in logs.items()
    }


def _read(
    asker: ApiClient, at: dict[TopicPartition, int], logs: Mapping[TopicPartition, _Log], count: int
) -> tuple[dict[TopicPartition, list[LogRecord]], list[str]]:
    """Return the records from `at` on, which is moved behind them, and what kept partitions from being read.

    Each partition has its share of the page, so that none of them is left behind by the others.
    """
    share = max(1, count // len(at))
    found: dict[TopicPartition, list[LogRecord]] = {place: [] for place in at}
    problems: list[str] = []
    wanted = {place: offset for place, offset in at.items() if offset < logs[place].end}
    wait_ms = 0
    for _ in range(_ROUNDS_MAX):
        if not wanted or asker.deadline().left() < _SECONDS_KEPT:
            break
        outcomes = asker.records.read(wanted, bytes_max=_PAGE_BYTES, **_limits(share, wait_ms))
        # The lake gives with a later fetch what it had no time for.
        failed: set[TopicPartition] = set()
        wait_ms = 0 if any(_moves(each, wanted[place]) for place, each in outcomes.items()) else _COLD_WAIT_MS
        for place, outcome in outcomes.items():
            if not isinstance(outcome, LogSlice):
                problems.append(f"partition {place.partition}: {outcome}")
                behind = outcome.next_offset if isinstance(outcome, AnswerTooLargeError) else None
                if behind is None:
                    failed.add(place)
                else:
                    # What is too large to be shown must not hide what lies behind it.
                    at[place] = behind
                continue
            room = share - len(found[place])
            found[place] += outcome.records[:room]
            at[place] = outcome.records[room].offset if len(outcome.records) > room else outcome.next_offset
        wanted = {
            place: at[place]
            for place in wanted
            if place not in failed and len(found[place]) < share and at[place] < logs[place].end
        }
    return found, problems


def _moves(outcome: LogSlice | AdminError, offset: int) -> bool:
    return isinstance(outcome, AdminError) or outcome.next_offset > offset


def _row(
    place: TopicPartition,
    record: LogRecord,
    key_bytes: int = _KEY_BYTES,
    value_bytes: int = _VALUE_BYTES,
    header_bytes: int = _HEADER_BYTES,
    headers_max: int = _HEADERS_MAX,
) -> dict[str, Any]:
    headers = [
        {"name": name[:header_bytes], "value": content(value, header_bytes)}
        for name, value in record.headers[:headers_max]
    ]
    return {
        "partition": place.partition,
        "offset": str(record.offset),
        "timestamp": record.timestamp,
        "key": content(record.key, key_bytes),
        "value": content(record.value, value_bytes),
        "headers": headers,
        "header_count": len(record.headers),
    }
