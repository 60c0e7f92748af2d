"""The lag of groups: from offsets, as any client can compute it, and as a broker of Korvet has counted it.

Kafka's protocol has offsets, no counts. Where offsets are dense their difference is the count, apart from records that
compaction has removed. With Korvet's offset.encoding=time an offset has a time in its upper bits, and a difference is
no count: for such a log only a lag of 0 is known. A broker of Korvet counts the lag of all topics, in records and in
seconds, and publishes it in /metrics. The lag of a share group is in its broker's answer.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.connection import Address, open_socket
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    ConnectionFailedError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.groups import SHARE, STREAMS, GroupDescription, Member
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset, ShareGroupOffset
from korvet.admin.types import TIME_CODED_FROM, TopicPartition, settled


def lag_of(committed: int, start: int, end: int) -> int | None:
    """Return the number of records from `committed` on in a log from `start` to `end`; None if it is not known."""
    first = max(committed, start)
    if first >= end:
        return 0
    return None if end >= TIME_CODED_FROM else end - first


GroupPartition = tuple[str, TopicPartition]


class PartitionProgress(msgspec.Struct, frozen=True):
    """A partition that a group has committed an offset of, or that a member reads. None is absent or not known.

    In place of a committed offset a share group has the first offset that it is not done with, and no `member`, since
    several may have the partition. `start` and `end` are those of the log, None if the partition is deleted. `lag` is
    in records, `lag_seconds` is the age of the oldest of them.
    """

    partition: TopicPartition
    committed: CommittedOffset | None
    end: int | None
    lag: int | None
    member: Member | None
    lag_seconds: float | None = None
    start: int | None = None

    @property
    def uncommitted(self) -> int | None:
        """The records of the whole log, where nothing is committed: the group starts before or after them."""
        if self.committed is not None or self.start is None or self.end is None:
            return None
        return lag_of(self.start, self.start, self.end)


def progress_of(
    admin: AdminClient,
    groups: Iterable[GroupDescription],
    counted: Mapping[GroupPartition, int],
    ages: Mapping[GroupPartition, float] | None = None,
    *,
    assigned_only: bool = False,
) -> dict[str, list[PartitionProgress]]:
    """Return the partitions of each group, sorted. Raises AdminError.

    `counted` are the lags that a broker has counted, and `ages` the ages in seconds. They are older than the offsets:
    they override the lag by offsets only if that is not 0, and something is still committed. The lag of a share group
    is as its broker answers; with `assigned_only` it is asked for partitions that members have, not for all that
    there are: a broker of Korvet looks at each.
    """
    groups = list(groups)
    readers: dict[str, dict[TopicPartition, Member | None]] = {
        group.group_id: {
            key: None if group.type == SHARE else member
            for member in group.members
            for key in member.partitions or ()
        }
        for group in groups
    }
    shares = settled(
        admin.offsets.of_share_groups(
            {
                group.group_id: readers[group.group_id] if assigned_only else None
                for group in groups
                if group.type == SHARE
            }
        )
    )
    committed = {
        name: _begun(shares[name]) if name in shares else admin.offsets.committed(name) for name in readers
    }
    # After the committed offsets, and at once for all groups, so that these are in the logs.
    partitions = {key for name in readers for key in (*readers[name], *committed[name])}
    starts = _existing(admin.offsets.at(dict.fromkeys(partitions, EARLIEST)))
    ends = _existing(admin.offsets.at(dict.fromkeys(partitions, LATEST)))
    lags = {**counted, **{(name, key): share.lag for name in shares for key, share in shares[name].items()}}
    progress = {}
    for group in groups:
        name, rows = group.group_id, []
        for key in sorted(readers[name].keys() | committed[name].keys()):
            offset, start, end = committed[name].get(key), starts.get(key), ends.get(key)
            if group.type == STREAMS and offset is None and end is None:
                continue  # such partitions of its members may not exist
            lag: int | None = None
            seconds: float | None = None
            if offset and start is not None and end is not None:
                lag = lag_of(offset.offset, start, end)
                if lag != 0:
                    lag = lags.get((name, key), lag)
                seconds = 0.0 if lag == 0 else (ages or {}).get((name, key))
            rows.append(PartitionProgress(key, offset, end, lag, readers[name].get(key), seconds, start))
        progress[name] = rows
    return progress


def _begun(shares: Mapping[TopicPartition, ShareGroupOffset]) -> dict[TopicPartition, CommittedOffset]:
    return {key: CommittedOffset(share.start, share.leader_epoch) for key, share in shares.items()}


def _existing(outcomes: Mapping[TopicPartition, LogOffset | AdminError]) -> dict[TopicPartition, int]:
    """Return the offsets, without deleted partitions. Raises any other error."""
    existing = {
        key: outcome
        for key, outcome in outcomes.items()
        if not isinstance(outcome, UnknownTopicOrPartitionError)
    }
    return {key: offset.offset for key, offset in settled(existing).items()}


PAGE_BYTES_MAX = 128 * 1024 * 1024
"""The largest page that is read."""


class CountedLags(msgspec.Struct, frozen=True):
    """The lags of groups in records, and the ages in seconds of the oldest records that are not committed."""

    records: dict[GroupPartition, int]
    seconds: dict[GroupPartition, float]


_LINE = re.compile(
    r"^korvet_consumer_group_lag_(?P<unit>records|seconds)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE
)
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def counted_lags(address: Address, timeout: float) -> CountedLags:
    """Return the lags that the broker with this ops address has counted, by group and partition.

    Only the broker whose keeper is active counts, every `log.figures.interval.ms`. With very many partitions it
    publishes sums, and there is no lag by partition. `timeout` is in seconds. Raises ConnectionFailedError and
    BadAnswerError.
    """
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.sock = open_socket(address, timeout)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        page = response.read(PAGE_BYTES_MAX + 1)
    except (OSError, UnicodeError) as error:
        raise ConnectionFailedError(f"no metrics of {address}: {error}") from error
    except http.client.HTTPException as error:
        raise BadAnswerError(f"{address} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if response.status != HTTPStatus.OK or len(page) > PAGE_BYTES_MAX:
        raise BadAnswerError(f"{address} has no metrics page (status {response.status})")
    return parse_lags(page.decode(errors="replace"))


def parse_lags(page: str) -> CountedLags:
    """Return the lags in a metrics page, without sums; malformed lines are skipped."""
    lags = CountedLags({}, {})
    for line in _LINE.finditer(page):
        labels = {
            label["name"]: _ESCAPED.sub(lambda escaped: escaped[1].replace("n", "\n"), label["value"])
            for label in _LABEL.finditer(line["labels"])
        }
        with contextlib.suppress(KeyError, ValueError):
            partition = TopicPartition(labels["topic"], int(labels["partition"]))
            key, value = (labels["group"], partition), float(line["value"])
            if math.isfinite(value) and line["unit"] == "records":
                lags.records[key] = int(value)
            elif math.isfinite(value):
                lags.seconds[key] = value
    return lags
