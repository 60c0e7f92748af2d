"""Every metric that processes count themselves: names, labels, buckets and help texts.

Import it only after `snapshot.adopt`: prometheus_client chooses its kind of values when a metric is created. Metrics
that the ops process reads for each page are declared in gauges.py, process_metrics.py, redis_metrics.py and
topic_metrics.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

# From a request answered out of memory to the longest poll that clients ask for.
DURATION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# From reading a hash on the same machine to a Redis that hangs until the timeout.
ROUND_TRIP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# From a task without work to a pass over large logs.
TURN_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


class Durations(Histogram):
    """A histogram that adds many observations at once, at less cost than one by one."""

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


REQUESTS = Counter(
    "korvet_requests", "Number of answered requests, by API and top-level error.", ("api", "error")
)
REQUEST_DURATION = Durations(
    "korvet_request_duration_seconds",
    "Time from the last byte of a request to its response, including waits that the client asked for.",
    ("api",),
    buckets=DURATION_BUCKETS,
)
STAGE_DURATION = Durations(
    "korvet_request_stage_duration_seconds",
    "Time of a Produce or Fetch request by stage: queue (until a worker handles it), decode, redis, wait (for records,"
    " the lake or replicas), encode.",
    ("api", "stage"),
    buckets=DURATION_BUCKETS,
)
REQUESTS_IN_FLIGHT = Gauge(
    "korvet_requests_in_flight", "Number of requests in progress.", multiprocess_mode="livesum"
)
REQUESTS_PARKED = Gauge(
    "korvet_requests_parked",
    "Number of requests that wait: Fetch for records, JoinGroup and SyncGroup for the other members of the group.",
    ("api",),
    multiprocess_mode="livesum",
)
FETCH_SESSIONS = Gauge(
    "korvet_fetch_sessions", "Number of fetch sessions (KIP-227).", multiprocess_mode="livesum"
)
FETCH_SESSION_PARTITIONS = Gauge(
    "korvet_fetch_session_partitions",
    "Number of partitions in fetch sessions.",
    multiprocess_mode="livesum",
)
FETCH_SESSION_EVICTIONS = Counter(
    "korvet_fetch_session_evictions",
    "Number of fetch sessions that ended because others took their place: their clients name all partitions again.",
)
CONNECTIONS = Gauge(
    "korvet_connections",
    "Number of open client connections, by listener.",
    ("listener",),
    multiprocess_mode="livesum",
)
CONNECTIONS_OPENED = Counter(
    "korvet_connections_opened", "Number of accepted client connections, by listener.", ("listener",)
)
CONNECTIONS_CLOSED = Counter(
    "korvet_connections_closed", "Number of closed client connections, by reason.", ("reason",)
)
AUTHENTICATIONS = Counter(
    "korvet_authentications",
    "Number of logins by SASL, by listener, mechanism and outcome: authenticated, renewed (on a connection that had"
    " logged in) or refused. Of certificates of clients those that are refused, as TLS; of tokens at ops.listen too,"
    " as OPS.LISTEN and token.",
    ("listener", "mechanism", "outcome"),
)
TLS_CERTIFICATE_EXPIRY = Gauge(
    "korvet_tls_certificate_expiry_timestamp_seconds",
    "Time when the first certificate of the listener's chain expires, as workers have read it.",
    ("listener",),
    multiprocess_mode="livemin",
)
CONNECTIONS_REFUSED = Counter(
    "korvet_connections_refused",
    "Number of connections closed before any request, by reason: address_connections (the address has as many as it"
    " may), address_rate (it makes them too fast), draining.",
    ("reason",),
)
ACCEPT_WAIT_SECONDS = Counter(
    "korvet_accept_wait_seconds",
    "Time for which listeners accepted no connection, by reason: connections (broker or listener has as many as it"
    " may), rate (they came too fast).",
    ("reason",),
)
RECEIVED_BYTES = Counter("korvet_received_bytes", "Bytes received in requests.")
SENT_BYTES = Counter("korvet_sent_bytes", "Bytes sent in responses.")
AUTHORIZATION_DENIED = Counter(
    "korvet_authorization_denied",
    "Number of refusals for want of a right, by API, and by the operation and the type of resource that need it.",
    ("api", "operation", "resource"),
)
ADMIN_CHANGES = Counter(
    "korvet_admin_changes",
    "Number of topics, configs, groups, ACLs, quotas, users and others that administrative requests changed, by"
    " outcome: done or failed.",
    ("api", "outcome"),
)

REDIS_UNAVAILABLE = Counter(
    "korvet_redis_unavailable",
    "Number of requests that failed because Redis was unreachable or too slow, or refused.",
)
REDIS_ROUND_TRIP = Durations(
    "korvet_redis_round_trip_seconds",
    "Time from sending a command to the answer of Redis, by script; all other commands and pipelines are 'commands'.",
    ("operation",),
    buckets=ROUND_TRIP_BUCKETS,
)
REDIS_RECONNECTS = Counter(
    "korvet_redis_reconnects", "Number of connections to Redis that replaced a lost one."
)
REDIS_CONNECT_FAILURES = Counter(
    "korvet_redis_connect_failures", "Number of failed attempts to connect to Redis."
)
SCRIPT_ERRORS = Counter(
    "korvet_redis_script_errors",
    "Number of errors returned by Lua scripts, by script and error. Kafka's names, such as UNKNOWN_MEMBER_ID, are"
    " expected refusals; all others are faults of Korvet or Redis.",
    ("script", "error"),
)
PRODUCE_ERRORS = Counter(
    "korvet_produce_errors", "Number of batches of producers that were not appended, by error.", ("error",)
)
PRODUCE_ERROR_TIME = Gauge(
    "korvet_produce_last_error_timestamp_seconds",
    "Time of the last batch of a producer that was not appended, by error.",
    ("error",),
    multiprocess_mode="max",
)
REDIS_MEMORY_USED_RATIO = Gauge(
    "korvet_redis_memory_used_ratio",
    "Share of maxmemory that Redis used when a producer last caused a check; 0 without a limit.",
    ("node",),
    multiprocess_mode="mostrecent",
)
EMBEDDED_DISK_USED_RATIO = Gauge(
    "korvet_embedded_disk_used_ratio",
    "Share of its disk, or of embedded.disk.max.bytes, that the files of the embedded server took when a producer last"
    " caused a check.",
    multiprocess_mode="mostrecent",
)
REDIS_EVICTS = Gauge(
    "korvet_redis_evicts",
    "1 if the maxmemory-policy of Redis evicts keys: it must be noeviction.",
    ("node",),
    multiprocess_mode="mostrecent",
)
LAKE_READ_ERRORS = Counter(
    "korvet_lake_read_errors", "Number of failed reads of archived records, by offset or by time."
)
LAKE_READ_DURATION = Histogram(
    "korvet_lake_read_duration_seconds",
    "Time of reads from the lake, by kind: read (records), first_from and largest (offsets by time).",
    ("kind",),
    buckets=DURATION_BUCKETS,
)
THROTTLED_REQUESTS = Counter(
    "korvet_throttled_requests",
    "Number of throttled requests by reason: memory (Redis' memory or disk is short), or the quota that was exceeded.",
    ("reason",),
)
THROTTLE_SECONDS = Counter(
    "korvet_throttle_seconds", "Time for which connections were muted by throttling, by reason.", ("reason",)
)

KEEPER_LEADER = Gauge(
    "korvet_keeper_leader", "1 if the keeper of this broker holds the lease.", multiprocess_mode="livesum"
)
BROKER_REGISTERED = Gauge(
    "korvet_broker_registered",
    "1 if the id of this broker is registered in Redis, so that other brokers list it to clients.",
    multiprocess_mode="livesum",
)
KEEPER_TURNS = Counter(
    "korvet_keeper_turns", "Number of runs of the keeper's tasks, by task and outcome.", ("task", "outcome")
)
KEEPER_LEASES = Counter(
    "korvet_keeper_leases", "Number of times that the keeper of this broker acquired the lease."
)
KEEPER_TURN_DURATION = Histogram(
    "korvet_keeper_turn_duration_seconds",
    "Duration of a run of a keeper's task, whatever its outcome.",
    ("task",),
    buckets=TURN_BUCKETS,
)
KEEPER_TURN_DONE = Gauge(
    "korvet_keeper_last_done_timestamp_seconds",
    "Time when a task of the keeper of this broker last completed; on all nodes of a Redis Cluster.",
    ("task",),
    multiprocess_mode="mostrecent",
)
PRODUCERS_EXPIRED = Counter(
    "korvet_producers_expired", "Number of inactive idempotent producers that were removed."
)
OFFSETS_EXPIRED = Counter(
    "korvet_offsets_expired", "Number of committed offsets removed by offset retention."
)
TRANSACTIONS_COMPLETED = Counter(
    "korvet_transactions_completed",
    "Number of transactions that ended, by result (commit, abort) and reason: client (EndTxn), fenced (by the next"
    " request of the id's producer), keeper (past its timeout, or left by a process that died).",
    ("result", "reason"),
)
LOG_TRIMMED_RECORDS = Counter(
    "korvet_log_trimmed_records",
    "Number of records deleted from logs, by reason: time, size, delete_records; exact to one index entry.",
    ("reason",),
)
LOGS_CUT = Counter(
    "korvet_log_cut",
    "Number of logs of which Redis has lost records that a worker knew of; each worker counts for itself.",
)
COMPACTION_PASSES = Counter(
    "korvet_compaction_passes",
    "Number of compaction passes, by outcome: done, failed, changed (the log changed before the pass began), overtaken"
    " (another keeper started one).",
    ("outcome",),
)
COMPACTION_RECORDS_REMOVED = Counter(
    "korvet_compaction_records_removed", "Number of records removed by compaction."
)
COMPACTION_UNKEYED_REMOVED = Counter(
    "korvet_compaction_unkeyed_removed",
    "Number of records without a key removed by compaction; other clients wrote them.",
)
COMPACTION_UNREADABLE = Counter(
    "korvet_compaction_unreadable_batches",
    "Number of batches that compaction keeps because their records cannot be read; a restart counts them again.",
)
ENTRIES_RENUMBERED = Counter(
    "korvet_entries_renumbered",
    "Number of entries, added by other Redis clients, that got another id, for theirs was not the next offset's.",
)
EXTERNAL_ENTRIES_REMOVED = Counter(
    "korvet_external_entries_removed",
    "Number of entries, added by other Redis clients, that were removed from logs in format batch.",
)
