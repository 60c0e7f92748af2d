"""The markers that end transactions in partitions (KIP-98): appended as batches of one control record.

They go the way of all appends, so leader epochs, external entries and the high watermark hold for them too. A marker
may be written twice or late without harm: the append script knows by the number of the transaction that it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import gevent

from korvet.backoff import Backoff
from korvet.errors import AppendUnknownError, KafkaError, StorageUnavailableError
from korvet.log.appends import Marker
from korvet.log.replication import Replicas
from korvet.log.store import LogStore

_TRIES_MAX = 4
"""Tries to write a marker while Redis is away, in about a second: a client waits for it, and the keeper comes after."""


class MarkerWriter:
    """Writes markers to the logs of one worker's store."""

    def __init__(
        self,
        log: LogStore,
        replicas: Replicas,
    ) -> None:
        self._log = log
        self._replicas = replicas

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
        """Write the markers at `places` once, record the results, and return the ones to try again."""
        failed = []
        appended = self._replicas.confirm(self._log.append([markers[place] for place in places]))
        for place, result in zip(places, appended, strict=True):
            if not isinstance(result, KafkaError):
                outcomes[place] = None
                continue
            outcomes[place] = result
            if isinstance(result, StorageUnavailableError | AppendUnknownError):
                failed.append(place)
        return failed
