"""Every metric that processes count themselves: names, labels and buckets.

Import it only after `snapshot.adopt`: prometheus_client chooses its kind of values when a metric is created. Metrics
that the ops process reads for each page are declared in gauges.py, process_metrics.py, redis_metrics.py and
topic_metrics.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram

from korvet.telemetry.documentation import HELP

# From a request answered out of memory to the longest poll that clients ask for.
DURATION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# From reading a hash on the same machine to a Redis that hangs until the timeout.
ROUND_TRIP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# From a task without work to a pass over large logs.
TURN_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


class Durations(Histogram):
    """A histogram that adds many observations at once, at less cost than one by one."""

    def add(self, seconds: Sequence[float]) -> None:
        self._sum.inc(sum(seconds))
        ordered = sorted(seconds)
        below = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets, strict=True):
            end = bisect_right(ordered, bound)
            if end > below:
                bucket.inc(end - below)
            below = end


Mode = Literal["livemin", "livesum", "max", "mostrecent"]
"""How a gauge is made of those of all processes; of processes that have ended only the last two have something."""


def _counter(name: str, *labels: str) -> Counter:
    return Counter(name, HELP[name], labels)


def _gauge(name: str, mode: Mode, *labels: str) -> Gauge:
    return Gauge(name, HELP[name], labels, multiprocess_mode=mode)


def _durations(name: str, buckets: Sequence[float], *labels: str) -> Durations:
    return Durations(name, HELP[name], labels, buckets=buckets)


REQUESTS = _counter("korvet_requests", "api", "error")
REQUEST_DURATION = _durations("korvet_request_duration_seconds", DURATION_BUCKETS, "api")
STAGE_DURATION = _durations("korvet_request_stage_duration_seconds", DURATION_BUCKETS, "api", "stage")
REQUESTS_IN_FLIGHT = _gauge("korvet_requests_in_flight", "livesum")
REQUESTS_PARKED = _gauge("korvet_requests_parked", "livesum", "api")
FETCH_SESSIONS = _gauge("korvet_fetch_sessions", "livesum")
FETCH_SESSION_PARTITIONS = _gauge("korvet_fetch_session_partitions", "livesum")
FETCH_SESSION_EVICTIONS = _counter("korvet_fetch_session_evictions")
CONNECTIONS = _gauge("korvet_connections", "livesum", "listener")
CONNECTIONS_OPENED = _counter("korvet_connections_opened", "listener")
CONNECTIONS_CLOSED = _counter("korvet_connections_closed", "reason")
AUTHENTICATIONS = _counter("korvet_authentications", "listener", "mechanism", "outcome")
TLS_CERTIFICATE_EXPIRY = _gauge("korvet_tls_certificate_expiry_timestamp_seconds", "livemin", "listener")
CONNECTIONS_REFUSED = _counter("korvet_connections_refused", "reason")
ACCEPT_WAIT_SECONDS = _counter("korvet_accept_wait_seconds", "reason")
RECEIVED_BYTES = _counter("korvet_received_bytes")
SENT_BYTES = _counter("korvet_sent_bytes")
AUTHORIZATION_DENIED = _counter("korvet_authorization_denied", "api", "operation", "resource")
ADMIN_CHANGES = _counter("korvet_admin_changes", "api", "outcome")

REDIS_UNAVAILABLE = _counter("korvet_redis_unavailable")
REDIS_ROUND_TRIP = _durations("korvet_redis_round_trip_seconds", ROUND_TRIP_BUCKETS, "operation")
REDIS_RECONNECTS = _counter("korvet_redis_reconnects")
REDIS_CONNECT_FAILURES = _counter("korvet_redis_connect_failures")
SCRIPT_ERRORS = _counter("korvet_redis_script_errors", "script", "error")
PRODUCE_ERRORS = _counter("korvet_produce_errors", "error")
PRODUCE_ERROR_TIME = _gauge("korvet_produce_last_error_timestamp_seconds", "max", "error")
REDIS_MEMORY_USED_RATIO = _gauge("korvet_redis_memory_used_ratio", "mostrecent", "node")
EMBEDDED_DISK_USED_RATIO = _gauge("korvet_embedded_disk_used_ratio", "mostrecent")
REDIS_EVICTS = _gauge("korvet_redis_evicts", "mostrecent", "node")
LAKE_READ_ERRORS = _counter("korvet_lake_read_errors")
LAKE_READ_DURATION = _durations("korvet_lake_read_duration_seconds", DURATION_BUCKETS, "kind")
THROTTLED_REQUESTS = _counter("korvet_throttled_requests", "reason")
THROTTLE_SECONDS = _counter("korvet_throttle_seconds", "reason")

KEEPER_LEADER = _gauge("korvet_keeper_leader", "livesum")
BROKER_REGISTERED = _gauge("korvet_broker_registered", "livesum")
KEEPER_TURNS = _counter("korvet_keeper_turns", "task", "outcome")
KEEPER_LEASES = _counter("korvet_keeper_leases")
KEEPER_TURN_DURATION = _durations("korvet_keeper_turn_duration_seconds", TURN_BUCKETS, "task")
KEEPER_TURN_DONE = _gauge("korvet_keeper_last_done_timestamp_seconds", "mostrecent", "task")
PRODUCERS_EXPIRED = _counter("korvet_producers_expired")
OFFSETS_EXPIRED = _counter("korvet_offsets_expired")
TRANSACTIONS_COMPLETED = _counter("korvet_transactions_completed", "result", "reason")
LOG_TRIMMED_RECORDS = _counter("korvet_log_trimmed_records", "reason")
LOGS_CUT = _counter("korvet_log_cut")
COMPACTION_PASSES = _counter("korvet_compaction_passes", "outcome")
COMPACTION_RECORDS_REMOVED = _counter("korvet_compaction_records_removed")
COMPACTION_UNKEYED_REMOVED = _counter("korvet_compaction_unkeyed_removed")
COMPACTION_UNREADABLE = _counter("korvet_compaction_unreadable_batches")
ENTRIES_RENUMBERED = _counter("korvet_entries_renumbered")
EXTERNAL_ENTRIES_REMOVED = _counter("korvet_external_entries_removed")
