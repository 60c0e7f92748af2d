"""Reports of the process that runs a pipeline, and the lease that keeps others from running it.

Each event of Spark becomes a row in Redis, by a thread that no query waits for: several events that come while Redis is
slow are one write. The same thread renews the lease. Nothing of Spark is imported here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from korvet import logs
from korvet.cluster.pipelines import (
    LEASE_MS,
    MAIN,
    PipelineProcess,
    PipelineStatus,
    PipelineStore,
    QueryStatus,
    State,
)
from korvet.errors import KafkaError
from korvet.lake.scan import PartitionSnapshot, count_records, snapshots
from korvet.lake.source import LakeSource, LakeStores, answered
from korvet.log.index import Lag
from korvet.log.types import LogPosition
from korvet.spark.pipelines.spec import UNMET, UNREAD, PipelineError
from korvet.spark.position import StreamPosition

_RENEW_S = LEASE_MS / 1000 / 3
_RETRY_S = 1.0
_GIVE_UP_S = 5.0
"""How long the end of the process waits for Redis to take its last words."""

_NEW = {UNREAD: "fields of records are not read", UNMET: "records are not as expected"}
_FIELD = {UNREAD: "fields", UNMET: "expected"}

_COUNTS_MAX = 100
"""Counts of a kind, such as sets of fields that are not read: names of JSON's fields may be data."""
_UNREAD_CHARACTERS_MAX = 500
_OTHER_FIELDS = "other fields"

_log = logs.Log(__name__)


class PipelineLease:
    """The right of this process to run a pipeline, or to change where it goes on; a context manager of LEASE_MS."""

    def __init__(self, store: PipelineStore, name: str) -> None:
        self._store = store
        self._name = name
        self.holder = str(PipelineProcess.own())

    def acquire(self) -> None:
        """Take or renew the lease; raises PipelineError if another process has it."""
        lease = self._store.lease(self._name)
        while lease.acquire(self.holder, LEASE_MS) is None:
            holder = self._store.holder(self._name)
            # One that was killed here has no need of its lease any more.
            if holder is not None and not PipelineProcess.parse(holder).has_ended:
                process = PipelineProcess.parse(holder)
                raise PipelineError(
                    f"pipeline {self._name} runs already: process {process.id} on {process.host}"
                )
            if holder is not None:
                lease.release(holder)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._store.lease(self._name).release(self.holder)


class PipelineReporter:
    """A context in which this process runs a pipeline: it has the lease, and reports what happens.

    Its end without a report is that of `failed` if there is an error, else that of `stopped`.
    """

    def __init__(
        self,
        source: LakeSource,
        name: str,
        *,
        file: str,
        stopped: threading.Event,
        tables: Iterable[str] = (),
    ) -> None:
        """`tables` are the paths that it writes to.

        `stopped` is set, by another thread, if another process has the lease: this one must end.
        """
        self._source = source
        self._stopped = stopped
        self.is_lost = False
        """Whether another process has the lease."""
        now_ms = _now_ms()
        self._status = PipelineStatus(
            name=name,
            state="starting",
            since_ms=now_ms,
            started_ms=now_ms,
            holder=str(PipelineProcess.own()),
            file=file,
            log=_log_file(),
            tables=tuple(tables),
        )
        self._changed = threading.Condition()
        self._dirty = self._closing = False
        self._thread = threading.Thread(target=self._write_and_renew, name="pipeline status", daemon=True)

    def __enter__(self) -> Self:
        """Acquire the lease; raises PipelineError if another process has it."""
        status = self._status
        with self._source.opened() as stores:
            store = stores.pipelines
            PipelineLease(store, status.name).acquire()
            before = next((pipeline for pipeline in store.read() if pipeline.name == status.name), None)
            if before is not None:
                self._status = msgspec.structs.replace(
                    status,
                    restarts=before.restarts + (before.state in ("failed", "lost")),
                    records=before.records,
                    dead_letters=before.dead_letters,
                    unread_fields=before.unread_fields,
                    unmet=before.unmet,
                    error=before.error,
                    error_ms=before.error_ms,
                    queries=before.queries,
                )
            store.write(self._status)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._status.is_active:
            if isinstance(error, Exception):
                self.failed(str(error))
            else:
                self.stopped()
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_GIVE_UP_S)

    @property
    def has_lease(self) -> bool:
        """Whether no other process may run the pipeline: none has taken the lease."""
        return self._thread.is_alive()

    def started(self, queries: Collection[str]) -> None:
        """Report that the queries of these names run; what others have reported does not count any more."""
        kept = {name: query for name, query in self._status.queries.items() if name in queries}
        self._become("running", queries=kept)

    def progress(self, query: str, event: Mapping[str, Any]) -> None:
        """Report the end of a micro-batch of a query, by its StreamingQueryProgress as JSON has it."""
        self._log_losses(query, event)
        with self._changed:
            done = _done(self._status.queries.get(query, QueryStatus()), event)
            read = int(event["numInputRows"]) if query == MAIN else 0
            counts: dict[str, dict[str, int]] = {}
            if query == MAIN:
                counts = {"unread_fields": self._counts(event, UNREAD), "unmet": self._counts(event, UNMET)}
            queries = self._status.queries | {query: done}
            self._set(queries=queries, records=self._status.records + read, **counts)

    def idle(self, query: str, timestamp: str) -> None:
        """Report that a query looked for records and found none, at a time of ISO 8601."""
        with self._changed:
            before = self._status.queries.get(query, QueryStatus())
            polled = msgspec.structs.replace(before, polled_ms=_ms_of(timestamp))
            self._set(queries=self._status.queries | {query: polled})

    def _counts(self, event: Mapping[str, Any], kind: str) -> dict[str, int]:
        """Return the counts of records of metrics of a kind, a batch's added; log what is new."""
        counts = dict(self._status.unread_fields if kind == UNREAD else self._status.unmet)
        for name, metrics in event.get("observedMetrics", {}).items():
            for what, count in _counts_of(metrics) if name.startswith(kind) else ():
                place = f"{name.removeprefix(kind)}: {what}"
                if place not in counts and len(counts) >= _COUNTS_MAX:
                    place = f"{name.removeprefix(kind)}: {_OTHER_FIELDS}"
                if count and place not in counts:
                    _log.warning(_NEW[kind], pipeline=self._status.name, **{_FIELD[kind]: place})
                if count:
                    counts[place] = counts.get(place, 0) + count
        return counts

    def _log_losses(self, query: str, event: Mapping[str, Any]) -> None:
        log = partial(_log.warning, pipeline=self._status.name, query=query)
        for source in event["sources"]:
            began, ended = (_position(source.get(edge)) for edge in ("startOffset", "endOffset"))
            before, after = began.topics, ended.topics
            for topic in sorted(before.keys() - after.keys()):
                log("a topic was deleted: it is not read any more", topic=topic)
            for topic in sorted(before.keys() & after.keys()):
                if before[topic].id != after[topic].id:
                    log("a topic was re-created: it is read from its start", topic=topic, id=after[topic].id)
            known = began.losses()
            for key, lost in ended.losses().items():
                if lost != known.get(key):
                    log(
                        "offsets were lost before they were read",
                        **{"topic": key.topic, "partition": key.number, "from": lost.first, "to": lost.end},
                    )

    def dead_letters(self, count: int) -> None:
        """Report records that did not decode, and are in the table of dead letters."""
        with self._changed:
            self._set(dead_letters=self._status.dead_letters + count)

    def failed(self, reason: str) -> None:
        """Report that the pipeline ends by an error."""
        self._become("failed", error=reason, error_ms=_now_ms())

    def stopped(self, *, completed: bool = False) -> None:
        """Report that the pipeline ends as it was asked to; `completed`: it has read all there was."""
        self._become("completed" if completed else "stopped")

    def _become(self, state: State, **more: object) -> None:
        with self._changed:
            self._set(state=state, since_ms=_now_ms(), **more)

    def _set(self, **changes: object) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)
        self._dirty = True
        self._changed.notify()

    def _write_and_renew(self) -> None:
        with self._source.opened() as stores:
            store = stores.pipelines
            lease = store.lease(self._status.name)
            away = False
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._dirty or self._closing, _RENEW_S)
                    status, closing, self._dirty = self._status, self._closing, False
                try:
                    if lease.acquire(status.holder, LEASE_MS) is None:
                        _log.error("another process runs the pipeline", pipeline=status.name)
                        self.is_lost = True
                        self._stopped.set()
                        return
                    store.write(status)
                    if closing:
                        lease.release(status.holder)
                        return
                    away = False
                except KafkaError as error:
                    if closing:
                        return
                    if not away:
                        _log.warning("the status of a pipeline is not written", reason=error)
                    away = True
                    with self._changed:
                        self._dirty = True
                    time.sleep(_RETRY_S)


def _counts_of(metrics: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield names of fields and counts of records of a source's metrics, as `Decoder.unread` makes them."""
    for name, metric in metrics.items():
        if isinstance(metric, int):
            yield name, metric
            continue
        other = metric["records"]
        for named in metric["fields"] or ():
            other -= named["count"]
            if named.get("item") is not None:
                yield named["item"][:_UNREAD_CHARACTERS_MAX], named["count"]
        yield _OTHER_FIELDS, max(0, other)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _log_file() -> str | None:
    """Return the file that takes this process' lines, None if it is none."""
    path = Path("/proc/self/fd/2")
    return os.readlink(path) if path.is_file() else None  # noqa: PTH115 - a text


def _done(before: QueryStatus, event: Mapping[str, Any]) -> QueryStatus:
    """Return the status of a query after an event, which may be one without records."""
    ends = [_position(source["endOffset"]) for source in event["sources"]]
    positions = {name: position for end in ends for name, position in end.topics.items()}
    lost = {topic: partitions for end in ends for topic, partitions in end.lost.items()}
    if not event["numInputRows"]:
        return msgspec.structs.replace(
            before,
            positions=positions or before.positions,
            lost=lost or before.lost,
            polled_ms=_ended_ms(event),
        )
    return QueryStatus(
        batch=int(event["batchId"]),
        ended_ms=_ended_ms(event),
        polled_ms=_ended_ms(event),
        records=int(event["numInputRows"]),
        duration_ms=int(event["durationMs"].get("triggerExecution", 0)),
        records_per_second=float(event.get("processedRowsPerSecond") or 0.0),
        positions=positions,
        lost=lost,
    )


def _ended_ms(event: Mapping[str, Any]) -> int:
    return _ms_of(event["timestamp"]) + int(event["durationMs"].get("triggerExecution", 0))


def _ms_of(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _position(offset: object) -> StreamPosition:
    """Return an offset of the format `korvet`, an empty one for that of another source."""
    parsed = json.loads(offset) if isinstance(offset, str) else offset
    try:
        return msgspec.convert(parsed, StreamPosition, strict=False)
    except msgspec.ValidationError:
        return StreamPosition({})


def lag_of(stores: LakeStores, status: PipelineStatus) -> Lag:
    """Return what a pipeline has still to read of topics that it has read, in both tiers: records, and the first's age.

    The age is by the record's timestamp; of one that only the lake holds, by the first of its file. Topics that were
    deleted do not count. Raises LakeError, KafkaError and StorageUnavailableError.
    """
    positions = status.positions()
    records = age_ms = 0
    for topic in stores.matching("|".join(map(re.escape, positions))):
        if topic.id != positions[topic.name].id:
            continue
        for log in snapshots(stores, topic):
            first = max(positions[topic.name].offsets.get(log.partition.index, 0), log.start)
            if first < log.end:
                records += count_records(stores, log, first, sys.maxsize)
                age_ms = max(age_ms, _age_ms(stores, log, first))
    return Lag(records, age_ms)


def _age_ms(stores: LakeStores, log: PartitionSnapshot, first: int) -> int:
    bounds = stores.bounds(log.partition)
    lag = answered(*stores.indexes.lags([LogPosition(log.partition, first)]))
    if first >= bounds.redis_start:
        return lag.age_ms
    stamps = [file.first_timestamp for file in log.files if file.last_offset >= first]
    return max([lag.age_ms, *(_now_ms() - stamp // 1000 for stamp in stamps[:1] if stamp is not None)])
