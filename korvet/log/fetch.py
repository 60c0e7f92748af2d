"""Fetching for consumers: reading at once, and waiting until there is enough.

A fetch reads on arrival, when an append wakes it, and once at its deadline: that read makes up for a wake-up that was
lost. What it reads, and how much, is decided in reader.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from korvet.cluster.brokers import LEADER_EPOCH
from korvet.errors import ErrorCode, KafkaError
from korvet.log.reader import FetchPartitionSpec, FetchResult, Reader
from korvet.log.remote.tier import RemoteTier
from korvet.log.store import LogStore
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.telemetry.request_timer import NO_TIMER, REDIS, WAIT, RequestTimer


class FetchLimits(msgspec.Struct, frozen=True):
    """The limits of a whole fetch."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int


def check_leader_epoch(leader_epoch: int) -> None:
    """Check the leader epoch that a client knows; -1 is none (KIP-320).

    Raises KafkaError: FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
    """
    if leader_epoch in (-1, LEADER_EPOCH):
        return
    if leader_epoch < LEADER_EPOCH:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} is over")
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {leader_epoch} has not begun")


class Fetcher:
    """Reads for the consumers of one worker."""

    def __init__(
        self,
        log: LogStore,
        subscriptions: Subscriptions,
        remote: RemoteTier,
        clock: Callable[[], float] = time.monotonic,
        on_park: Callable[[int], None] = lambda _change: None,
    ) -> None:
        """`on_park` is called when a fetch begins (1) and ends (-1) to wait for records."""
        self._on_park = on_park
        self._reader = Reader(log, remote)
        self._subscriptions = subscriptions
        self._clock = clock
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Answer every parked fetch now, with what there is, and park none from now on."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def fetch(
        self, specs: Sequence[FetchPartitionSpec], limits: FetchLimits, timer: RequestTimer = NO_TIMER
    ) -> list[FetchResult]:
        """Read each of `specs`, in order; waits up to the limit until `bytes_min` are there.

        An error of one partition stands in its result and ends the waiting. So does a request without partitions, and
        one for archived records: the remote tier has a timeout of its own (Kafka: DelayedRemoteFetch).
        """
        deadline = self._clock() + limits.wait_ms_max / 1000
        results: list[FetchResult] = [FetchResult() for _ in specs]
        with Watch(self._subscriptions, [each.partition.channel for each in specs]) as watch:
            self._reader.read(specs, range(len(specs)), results, limits.bytes_max, timer)
            while not self._enough(results, limits) and self._clock() < deadline:
                if not watch.live:
                    watch.listen()
                    timer.end_stage(REDIS)
                    changed: Iterable[int] = range(len(specs))
                else:
                    changed = self._park(watch, deadline) or range(len(specs))
                    timer.end_stage(WAIT)
                self._reader.read(specs, changed, results, limits.bytes_max, timer)
        return results

    def _enough(self, results: list[FetchResult], limits: FetchLimits) -> bool:
        if not results or self._draining or any(each.error or each.from_remote for each in results):
            # Waiting brings no more from the remote tier, and no append announces a late answer of it.
            return True
        return sum(each.size_bytes for each in results) >= limits.bytes_min

    def _park(self, watch: Watch, deadline: float) -> set[int]:
        self._parked.add(watch)
        self._on_park(1)
        try:
            return watch.wait(max(0.0, deadline - self._clock()))
        finally:
            self._parked.discard(watch)
            self._on_park(-1)
