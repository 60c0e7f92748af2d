"""How far groups have come in each partition: committed offset, end of the log, lag, reader.

How far a group is behind, as the protocol lets a client know it.

Kafka's protocol tells offsets, not counts. Where offsets are dense the difference is the count, apart from records that
compaction has removed. In Korvet's storage format `record` an offset holds a time in its upper bits, and a difference
says nothing of records: for such a log only 0 is known, and everything else is unknown.

How far groups are behind, as a broker of Korvet has counted it last and tells in /metrics.

Kafka's protocol has no word for a count of records, or for their age; this does, exact in both storage formats and in
compacted topics. Knows the two metrics, and only as much of the text format as they are written in.
"""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.connection import Address
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    ConnectionFailedError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.groups import GroupDescription, Member
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset
from korvet.admin.types import TIME_CODED_FROM, TopicPartition


def lag_of(committed: int, start: int, end: int) -> int | None:
    """Return how many records from `committed` on are in a log from `start` to `end`; None where that is not known."""
    first = max(committed, start)
    if first >= end:
        return 0
    return None if end >= TIME_CODED_FROM else end - first


Counted = Mapping[tuple[str, TopicPartition], int]


class PartitionProgress(msgspec.Struct, frozen=True):
    """One partition that a group has committed an offset of, or that a member reads; None is not there or not known.

    `end` is None where the partition is gone; `lag` is in records, `lag_seconds` the age of the first of them.
    """

    partition: TopicPartition
    committed: CommittedOffset | None
    end: int | None
    lag: int | None
    member: Member | None
    lag_seconds: float | None = None


def progress_of(
    admin: AdminClient,
    groups: Iterable[GroupDescription],
    counted: Counted,
    ages: Mapping[tuple[str, TopicPartition], float] | None = None,
) -> dict[str, list[PartitionProgress]]:
    """Return the partitions of each group, sorted. Raises AdminError.

    `counted` are lags from elsewhere (see metrics); they go before what offsets tell, but not before the 0 of a group
    that has come to the end, since they are older. `ages` are theirs, in seconds, of which the protocol tells nothing.
    """
    found = {}
    for group in groups:
        readers = {place: member for member in group.members for place in member.partitions or ()}
        found[group.group_id] = (readers, admin.offsets.committed(group.group_id))
    # Asked last, and at once for all: what is committed lies in the log as it is told afterwards.
    places = {place for readers, committed in found.values() for place in (*readers, *committed)}
    starts = _there(admin.offsets.at(dict.fromkeys(places, EARLIEST)))
    ends = _there(admin.offsets.at(dict.fromkeys(places, LATEST)))
    progress = {}
    for group_id, (readers, committed) in found.items():
        rows = []
        for place in sorted(readers.keys() | committed.keys()):
            offset, start, end = committed.get(place), starts.get(place), ends.get(place)
            lag = lag_of(offset.offset, start.offset, end.offset) if offset and start and end else None
            seconds: float | None = 0.0
            if lag != 0:
                lag = counted.get((group_id, place), lag)
                seconds = (ages or {}).get((group_id, place))
            at = end.offset if end else None
            rows.append(PartitionProgress(place, offset, at, lag, readers.get(place), seconds))
        progress[group_id] = rows
    return progress


def _there(outcomes: Mapping[TopicPartition, LogOffset | AdminError]) -> dict[TopicPartition, LogOffset]:
    """Leave out partitions that are gone, which keeps nobody from the others; raises any other error."""
    there = {}
    for place, outcome in outcomes.items():
        if isinstance(outcome, LogOffset):
            there[place] = outcome
        elif not isinstance(outcome, UnknownTopicOrPartitionError):
            raise outcome
    return there


PAGE_BYTES_MAX = 128 * 1024 * 1024
"""Largest page that is read."""

GroupPartition = tuple[str, TopicPartition]


class CountedLags(msgspec.Struct, frozen=True):
    """How far groups are behind: `records` not committed yet, and the age of the first of them in `seconds`."""

    records: dict[GroupPartition, int]
    seconds: dict[GroupPartition, float]


_LINE = re.compile(
    r"^korvet_consumer_group_lag_(?P<unit>records|seconds)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE
)
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_OK = 200


def counted_lags(address: Address, timeout: float) -> CountedLags:
    """Return how far groups are behind, each in each partition of which there is a figure.

    Only the broker whose keeper acts has figures, taken every `log.figures.interval.ms`, and those of very many
    partitions are summed: then there is none. `timeout` is in seconds. Raises ConnectionFailedError, BadAnswerError.
    """
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        page = response.read(PAGE_BYTES_MAX + 1)
    except (OSError, UnicodeError) as error:
        raise ConnectionFailedError(f"no metrics of {address}: {error}") from error
    except http.client.HTTPException as error:
        raise BadAnswerError(f"{address} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if response.status != _OK or len(page) > PAGE_BYTES_MAX:
        raise BadAnswerError(f"{address} has no page of metrics (status {response.status})")
    return parse_lags(page.decode(errors="replace"))


def parse_lags(page: str) -> CountedLags:
    """Return the figures that stand on a page, without those of sums; what is no figure is passed over."""
    found = CountedLags({}, {})
    for line in _LINE.finditer(page):
        labels = {
            each["name"]: _ESCAPED.sub(_meant, each["value"]) for each in _LABEL.finditer(line["labels"])
        }
        try:
            place = TopicPartition(labels["topic"], int(labels["partition"]))
            key, value = (labels["group"], place), float(line["value"])
            if not math.isfinite(value):
                continue
            if line["unit"] == "records":
                found.records[key] = int(value)
            else:
                found.seconds[key] = value
        except (KeyError, ValueError):
            continue
    return found


def _meant(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
