"""The markers that end transactions in partitions (KIP-98): appended as batches of one control record.

They go the way of all appends, so leader epochs, external entries and the high watermark hold for them too. A marker
may be written twice or late without harm: the append script knows by the number of the transaction that it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gevent

from korvet.backoff import Backoff
from korvet.errors import AppendUnknownError, KafkaError, StorageUnavailableError
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.log.types import ABORT, COMMIT, AppendBatch, AppendRecords
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.control import control_batch, control_record
from korvet.topics.types import Partition

_TRIES_MAX = 4
"""Tries to write a marker while Redis is away, in about a second: a client waits for it, and the keeper comes after."""

THE_OPEN_ONE, OPEN_BEFORE = 0, -1
"""In place of the number of a transaction."""


class Marker(NamedTuple):
    """The end of a transaction in a partition.

    `number` THE_OPEN_ONE ends the one that is open there, whichever it is, OPEN_BEFORE only one of an earlier epoch.
    """

    partition: Partition
    producer_id: int
    epoch: int
    number: int
    commit: bool


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MarkerWriter:
    """Writes markers to the logs of one worker's store."""

    def __init__(
        self,
        log: LogStore,
        replicas: Replicas,
        on_index_row: Callable[[Partition], None] = lambda _partition: None,
    ) -> None:
        """`on_index_row` is called for each partition whose index got a row, and must not wait."""
        self._log = log
        self._replicas = replicas
        self._on_index_row = on_index_row

    def write(self, markers: Sequence[Marker]) -> list[KafkaError | None]:
        """Write each marker, all in one round trip; what was written before counts as written.

        As with acks=all, replicas have them then. In the answers KafkaError: INVALID_PRODUCER_EPOCH (a later one has
        begun; with OPEN_BEFORE also one of the same epoch), UNKNOWN_TOPIC_OR_PARTITION (the topic was deleted),
        KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND (to be tried again later).
        """
        outcomes: list[KafkaError | None] = [None] * len(markers)
        left = list(range(len(markers)))
        backoff = Backoff()
        while left:
            failed = self._write(markers, left, outcomes)
            if not failed or backoff.failures + 1 == _TRIES_MAX:
                break
            gevent.sleep(backoff.next_s())
            left = failed
        return outcomes

    def _write(
        self, markers: Sequence[Marker], places: Sequence[int], outcomes: list[KafkaError | None]
    ) -> list[int]:
        """Write those at `places` once, note what came of them, and return those to try again."""
        failed = []
        appended = self._replicas.confirm(self._log.append([_append(markers[place]) for place in places]))
        for place, result in zip(places, appended, strict=True):
            if not isinstance(result, KafkaError):
                outcomes[place] = None
                if result.row_bytes:
                    self._on_index_row(markers[place].partition)
                continue
            outcomes[place] = result
            if isinstance(result, StorageUnavailableError | AppendUnknownError):
                failed.append(place)
        return failed


def _append(marker: Marker) -> AppendRecords | AppendBatch:
    now_ms = _now_ms()
    partition, commit = marker.partition, marker.commit
    transaction = f"{COMMIT if commit else ABORT}{marker.number}"
    if partition.format == "batch":
        return AppendBatch(
            partition=partition,
            batch=memoryview(control_batch(commit, marker.producer_id, marker.epoch, now_ms)),
            codec=Codec.none,
            record_count=1,
            max_timestamp=now_ms,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            transaction=transaction,
        )
    return AppendRecords(
        partition=partition,
        records=[control_record(commit, now_ms)],
        max_timestamp=now_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transaction=transaction,
    )
