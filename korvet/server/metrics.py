"""Every metric, declared once.

Knows names, labels and buckets; who counts imports this module and nothing else. Import it only in a process that
`metrics_files.adopt` has prepared: prometheus_client chooses its kind of values when a metric is made. Workers
restarted and the build are told by ops itself, see ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

# From a request answered out of memory to the longest poll that clients ask for.
DURATION_BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class Durations(Histogram):
    """A histogram that takes many observations at once."""

    def add(self, by_bucket: Sequence[int], total: float) -> None:
        """Add observations, `total` their sum: so many for each bucket, the last of which is without a bound."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, by_bucket, strict=True):
            if count:
                bucket.inc(count)


REQUESTS = Counter("korvet_requests", "Requests answered, by API and top-level error.", ("api", "error"))
REQUEST_DURATION = Durations(
    "korvet_request_duration_seconds",
    "Time from the last byte of a request to its response, waits that the client asked for included.",
    ("api",),
    buckets=DURATION_BUCKETS,
)
REQUESTS_IN_FLIGHT = Gauge(
    "korvet_requests_in_flight", "Requests being served now.", multiprocess_mode="livesum"
)
CONNECTIONS = Gauge("korvet_connections", "Client connections open now.", multiprocess_mode="livesum")
CONNECTIONS_OPENED = Counter("korvet_connections_opened", "Client connections accepted.")
CONNECTIONS_CLOSED = Counter(
    "korvet_connections_closed", "Client connections closed, by reason.", ("reason",)
)
RECEIVED_BYTES = Counter("korvet_received_bytes", "Bytes of requests.")
SENT_BYTES = Counter("korvet_sent_bytes", "Bytes of responses.")

REDIS_UNAVAILABLE = Counter(
    "korvet_redis_unavailable", "Requests that failed because Redis was away, too slow or refusing."
)
PRODUCE_ERRORS = Counter(
    "korvet_produce_errors", "Batches of producers that were not appended, by error.", ("error",)
)
REDIS_MEMORY_USED_RATIO = Gauge(
    "korvet_redis_memory_used_ratio",
    "Share of Redis' maxmemory in use when a producer last had it read; 0 without a limit.",
    multiprocess_mode="mostrecent",
)
REDIS_EVICTS = Gauge(
    "korvet_redis_evicts",
    "1 where Redis' maxmemory-policy deletes data when memory runs short: it must be noeviction.",
    multiprocess_mode="mostrecent",
)
LAKE_READ_ERRORS = Counter(
    "korvet_lake_read_errors", "Reads of archived records that failed: fetches and look-ups by time."
)
THROTTLED_REQUESTS = Counter(
    "korvet_throttled_requests", "Requests of producers throttled for want of memory or disk."
)
THROTTLE_SECONDS = Counter(
    "korvet_throttle_seconds", "Time for which connections took no requests, being throttled."
)

KEEPER_LEADER = Gauge(
    "korvet_keeper_leader", "1 where this broker's keeper is the acting one.", multiprocess_mode="livesum"
)
BROKER_REGISTERED = Gauge(
    "korvet_broker_registered",
    "1 where clients of other brokers are told of this one: its id is registered in Redis.",
    multiprocess_mode="livesum",
)
KEEPER_TURNS = Counter(
    "korvet_keeper_turns", "Turns of the keeper's tasks, by task and outcome.", ("task", "outcome")
)
PRODUCERS_EXPIRED = Counter("korvet_producers_expired", "Silent idempotent producers forgotten.")
OFFSETS_EXPIRED = Counter("korvet_offsets_expired", "Committed offsets forgotten, being kept no longer.")
LOG_TRIMMED_RECORDS = Counter(
    "korvet_log_trimmed_records",
    "Records that left their log, by reason: time, size, delete_records; exact to one row of the index.",
    ("reason",),
)
COMPACTION_PASSES = Counter(
    "korvet_compaction_passes",
    "Passes of compaction, by outcome: done, failed, changed (the log was, before the pass began), overtaken "
    "(another keeper began one).",
    ("outcome",),
)
COMPACTION_RECORDS_REMOVED = Counter(
    "korvet_compaction_records_removed", "Records that compaction removed from their log."
)
COMPACTION_UNKEYED_REMOVED = Counter(
    "korvet_compaction_unkeyed_removed", "Those of them that had no key: other Redis clients wrote them."
)
ENTRIES_RENUMBERED = Counter(
    "korvet_entries_renumbered",
    "Entries of other Redis clients moved to an offset that Kafka clients can read.",
)
