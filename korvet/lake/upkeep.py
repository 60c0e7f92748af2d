"""Upkeep of all tables at once: small files into large ones, then what logs are not to keep, then files without a name.

Knows the order, and what is worth a log line; compaction and expiry know the rest.
"""

from __future__ import annotations

import msgspec

from korvet import logs
from korvet.lake.compaction import Run, compact_topics
from korvet.lake.expiry import VACUUM_HOURS_MIN, Expiry
from korvet.lake.source import Source
from korvet.lake.tables import Lake

_log = logs.Log(__name__)


class Upkeep(msgspec.Struct, frozen=True):
    """What one round did. `compacted` and `expired` are files that left a table; `failures` were logged."""

    compacted: int = 0
    expired: int = 0
    expired_records: int = 0
    failures: int = 0


def upkeep(source: Source, lake: Lake, now_ms: int, run: Run | None = None) -> Upkeep:
    """Do for all topics what there is to do now; merges are done by `run`, without one in this process.

    Raises KafkaError and StorageUnavailableError; LakeError; ValueError where there are tables and no topic at all.
    """
    compacted = failures = 0
    for merge in compact_topics(source, lake, (), run):
        if merge.error is not None:
            failures += 1
            _log.error(
                "could not be compacted", topic=merge.topic, partition=merge.partition, reason=merge.error
            )
        elif merge.done:
            compacted += merge.files_before
            _log.info(
                "compacted",
                topic=merge.topic,
                partition=merge.partition,
                files=merge.files_before,
                into=merge.files_after,
                records=merge.rows,
            )
    done = Expiry(source, lake).round((), VACUUM_HOURS_MIN, now_ms)
    for each in done.expired:
        if each.error is not None:
            _log.error("could not expire", topic=each.topic, partition=each.partition, reason=each.error)
        elif each.files:
            _log.info(
                "expired", topic=each.topic, partition=each.partition, start=each.start, records=each.rows
            )
    for one in done.vacuumed:
        if one.error is not None:
            _log.error("could not be vacuumed", topic=one.topic, reason=one.error)
    failures += sum(each.error is not None for each in done.expired)
    failures += sum(one.error is not None for one in done.vacuumed)
    return Upkeep(
        compacted=compacted,
        expired=sum(each.files for each in done.expired),
        expired_records=sum(each.rows for each in done.expired),
        failures=failures,
    )
