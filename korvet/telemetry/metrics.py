"""Every metric, declared once.

Knows names, labels and buckets; who counts imports this module and nothing else. Import it only in a process that
`metrics_files.adopt` has prepared: prometheus_client chooses its kind of values when a metric is made. What nobody
counts but ops reads for each page is declared where it is read: process_metrics.py, redis_metrics.py, topic_metrics.py
and figures_file.py.
"""

from __future__ import annotations

from bisect import bisect_right
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

# From a look at a hash on the same machine to a Redis that hangs until the time-out.
ROUND_TRIP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# From a task that finds nothing to do to a pass over large logs.
TURN_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


class Durations(Histogram):
    """A histogram that takes many observations at once, for less than it takes one by one."""

    def add(self, seconds: Sequence[float]) -> None:
        """Add observations."""
        self._sum.inc(sum(seconds))
        ordered = sorted(seconds)
        below = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets, strict=True):
            end = bisect_right(ordered, bound)
            if end > below:
                bucket.inc(end - below)
            below = end


REQUESTS = Counter("korvet_requests", "Requests answered, by API and top-level error.", ("api", "error"))
REQUEST_DURATION = Durations(
    "korvet_request_duration_seconds",
    "Time from the last byte of a request to its response, waits that the client asked for included.",
    ("api",),
    buckets=DURATION_BUCKETS,
)
STAGE_DURATION = Durations(
    "korvet_request_stage_duration_seconds",
    "Time of a Produce or Fetch by stage: queue (from its last byte to its turn), decode (the request read and"
    " checked), redis, wait (for records, or for replicas), encode (the response made).",
    ("api", "stage"),
    buckets=DURATION_BUCKETS,
)
REQUESTS_IN_FLIGHT = Gauge(
    "korvet_requests_in_flight", "Requests being served now.", multiprocess_mode="livesum"
)
REQUESTS_PARKED = Gauge(
    "korvet_requests_parked",
    "Requests that wait for others now: fetches for records, joins and syncs for the members of their group.",
    ("api",),
    multiprocess_mode="livesum",
)
CONNECTIONS = Gauge(
    "korvet_connections",
    "Client connections open now, by listener.",
    ("listener",),
    multiprocess_mode="livesum",
)
CONNECTIONS_OPENED = Counter(
    "korvet_connections_opened", "Client connections accepted, by listener.", ("listener",)
)
CONNECTIONS_CLOSED = Counter(
    "korvet_connections_closed", "Client connections closed, by reason.", ("reason",)
)
RECEIVED_BYTES = Counter("korvet_received_bytes", "Bytes of requests.")
SENT_BYTES = Counter("korvet_sent_bytes", "Bytes of responses.")

REDIS_UNAVAILABLE = Counter(
    "korvet_redis_unavailable", "Requests that failed because Redis was away, too slow or refusing."
)
REDIS_ROUND_TRIP = Durations(
    "korvet_redis_round_trip_seconds",
    "Time from a command's sending to Redis' answer, by script, or commands (one or several in one go) for all others.",
    ("operation",),
    buckets=ROUND_TRIP_BUCKETS,
)
REDIS_RECONNECTS = Counter(
    "korvet_redis_reconnects", "Connections to Redis made in the place of one that was lost."
)
REDIS_CONNECT_FAILURES = Counter(
    "korvet_redis_connect_failures", "Tries to connect to Redis that failed, or were refused."
)
SCRIPT_ERRORS = Counter(
    "korvet_redis_script_errors",
    "Error answers of scripts, by script and error: Kafka's names, such as UNKNOWN_MEMBER_ID, are a rule's refusal;"
    " all else is a fault, or a Redis that cannot.",
    ("script", "error"),
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
LAKE_READ_DURATION = Histogram(
    "korvet_lake_read_duration_seconds",
    "Time until the lake answered, by what it was asked: read (records), first_from and largest (by time).",
    ("kind",),
    buckets=DURATION_BUCKETS,
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
KEEPER_LEASES = Counter("korvet_keeper_leases", "Times that this broker's keeper became the acting one.")
KEEPER_TURN_DURATION = Histogram(
    "korvet_keeper_turn_duration_seconds",
    "Time that a turn of a keeper's task took, however it ended.",
    ("task",),
    buckets=TURN_BUCKETS,
)
KEEPER_TURN_DONE = Gauge(
    "korvet_keeper_last_done_timestamp_seconds",
    "When a task of this broker's keeper was last done to its end.",
    ("task",),
    multiprocess_mode="mostrecent",
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
