"""What each metric of /metrics is: the help text of its family, and its row in the reference.

The name of a counter is without `_total`.
"""

from korvet.config.documentation import by_group

_TEXT = """\
# Counted by each process
korvet_requests: Number of answered requests, by API and top-level error.
korvet_request_duration_seconds: Time from the last byte of a request to its response, including waits that the client
    asked for.
korvet_request_stage_duration_seconds: Time of a Produce or Fetch request by stage: queue (until a worker handles it),
    decode, redis, wait (for records, the lake or replicas), encode.
korvet_requests_in_flight: Number of requests in progress.
korvet_requests_parked: Number of requests that wait: Fetch for records, JoinGroup and SyncGroup for the other members
    of the group.
korvet_fetch_sessions: Number of fetch sessions (KIP-227).
korvet_fetch_session_partitions: Number of partitions in fetch sessions.
korvet_fetch_session_evictions: Number of fetch sessions that ended because others took their place: their clients name
    all partitions again.
korvet_connections: Number of open client connections, by listener.
korvet_connections_opened: Number of accepted client connections, by listener.
korvet_connections_closed: Number of closed client connections, by reason.
korvet_authentications: Number of logins by SASL, by listener, mechanism and outcome: authenticated, renewed (on a
    connection that had logged in) or refused. Refused certificates of clients count as
    TLS, refused tokens at ops.listen as OPS.LISTEN and token.
korvet_tls_certificate_expiry_timestamp_seconds: Time when the first certificate of the listener's chain expires, as
    workers have read it.
korvet_connections_refused: Number of connections closed before any request, by reason: address_connections (the address
    has as many as it may), address_rate (it makes them too fast), draining.
korvet_accept_wait_seconds: Time for which listeners accepted no connection, by reason: connections (broker or listener
    has as many as it may), rate (they came too fast).
korvet_received_bytes: Bytes received in requests.
korvet_sent_bytes: Bytes sent in responses.
korvet_authorization_denied: Number of refusals for want of a right, by API, and by the operation and the type of
    resource that need it.
korvet_admin_changes: Number of topics, configs, groups, ACLs, quotas, users and others that administrative requests
    changed, by outcome: done or failed.
korvet_redis_unavailable: Number of requests that failed because Redis was unreachable or too slow, or refused.
korvet_redis_round_trip_seconds: Time from sending a command to the answer of Redis, by script; all other commands and
    pipelines are 'commands'.
korvet_redis_reconnects: Number of connections to Redis that replaced a lost one.
korvet_redis_connect_failures: Number of failed attempts to connect to Redis.
korvet_redis_script_errors: Number of errors returned by Lua scripts, by script and error. Kafka's names, such as
    UNKNOWN_MEMBER_ID, are expected refusals; all others are faults of Korvet or Redis.
korvet_produce_errors: Number of batches of producers that were not appended, by error.
korvet_produce_last_error_timestamp_seconds: Time of the last batch of a producer that was not appended, by error.
korvet_redis_memory_used_ratio: Share of maxmemory that Redis used when a producer last caused a check; 0 without a
    limit.
korvet_embedded_disk_used_ratio: Share of its disk, or of embedded.disk.max.bytes, that the files of the embedded server
    took when a producer last caused a check.
korvet_redis_evicts: 1 if the maxmemory-policy of Redis evicts keys: it must be noeviction.
korvet_lake_read_errors: Number of failed reads of archived records, by offset or by time.
korvet_lake_read_duration_seconds: Time of reads from the lake, by kind: read (records), first_from and largest (offsets
    by time).
korvet_throttled_requests: Number of throttled requests by reason: memory (Redis' memory or disk is short), or the quota
    that was exceeded.
korvet_throttle_seconds: Time for which connections were muted by throttling, by reason.
korvet_keeper_leader: 1 if the keeper of this broker holds the lease.
korvet_broker_registered: 1 if the id of this broker is registered in Redis, so that other brokers list it to clients.
korvet_keeper_turns: Number of runs of the keeper's tasks, by task and outcome.
korvet_keeper_leases: Number of times that the keeper of this broker acquired the lease.
korvet_keeper_turn_duration_seconds: Duration of a run of a keeper's task, whatever its outcome.
korvet_keeper_last_done_timestamp_seconds: Time when a task of the keeper of this broker last completed; on all nodes of
    a Redis Cluster.
korvet_producers_expired: Number of inactive idempotent producers that were removed.
korvet_offsets_expired: Number of committed offsets removed by offset retention.
korvet_transactions_completed: Number of transactions that ended, by result (commit, abort) and reason: client (EndTxn),
    fenced (by the next request of the id's producer), keeper (past its timeout, or left by a process that died).
korvet_log_trimmed_records: Number of records deleted from logs, by reason: time, size, delete_records; exact to one
    index entry.
korvet_log_cut: Number of logs of which Redis has lost records that a worker knew of; each worker counts for itself.
korvet_compaction_passes: Number of compaction passes, by outcome: done, failed, changed (the log changed before the
    pass began), overtaken (another keeper started one).
korvet_compaction_records_removed: Number of records removed by compaction.
korvet_compaction_unkeyed_removed: Number of records without a key removed by compaction; other clients wrote them.
korvet_compaction_unreadable_batches: Number of batches that compaction keeps because their records cannot be read; a
    restart counts them again.
korvet_entries_renumbered: Number of entries, added by other Redis clients, that got another id, for theirs was not the
    next offset's.
korvet_external_entries_removed: Number of entries, added by other Redis clients, that were removed from logs in format
    batch.

# Processes
korvet_process_start_time_seconds: Time when each process of this broker started: supervisor, keeper, ops, lake,
    archiver, worker-N.
korvet_process_cpu_seconds: CPU time that each process has used, including system calls.
korvet_process_resident_bytes: Resident memory of each process; pages shared with others count for each.
korvet_process_open_files: Number of open file descriptors of each process.
korvet_start_time_seconds: Time when the supervisor of this broker started.
korvet_child_restarts: Number of processes started to replace one that died.
korvet_workers: Number of workers by state.
korvet_build_info: Always 1; the version of Korvet, its highest format of data, and Python's version.

# Topics
korvet_topic_received_records: Number of records appended to the topic by producers. Above metrics.partitions.max
    topics, topic (other) is the sum of all others.
korvet_topic_received_bytes: Size of the batches of these records as producers sent them.
korvet_topic_sent_records: Number of records of the topic sent to consumers. Above metrics.partitions.max topics, topic
    (other) is the sum of all others.
korvet_topic_sent_bytes: Size of the batches of these records as they were sent.

# Published by keeper and archiver
korvet_log_figures_timestamp_seconds: Time when the keeper of this broker last collected the statistics of logs and
    groups.
korvet_log_size_bytes: Size of the log in Redis, exact to one index entry. Above metrics.partitions.max partitions it is
    the sum by topic, and topic (other) is all other topics.
korvet_log_records: Number of records in the log, exact to one index entry. Above metrics.partitions.max partitions it
    is the sum by topic, and topic (other) is all other topics.
korvet_log_index_rows: Number of entries in the sparse index of the log. Above metrics.partitions.max partitions it is
    the sum by topic, and topic (other) is all other topics.
korvet_log_compacted_bytes: Size of the compacted part of the log; absent if the log was never compacted. Above
    metrics.partitions.max partitions it is the sum by topic, and topic (other) is all other topics.
korvet_log_dirty_ratio: Share of the log's bytes that is not compacted; absent if the log was never compacted.
korvet_log_start_offset: First offset of the log. Above metrics.partitions.max partitions it is absent.
korvet_log_end_offset: Log end offset: that of the next record. Above metrics.partitions.max partitions it is absent.
korvet_log_oldest_record_age_seconds: Age of the first record of the log by its timestamp; absent if the log is empty.
    Above metrics.partitions.max partitions it is the largest by topic, and topic (other) is all other topics.
korvet_log_last_stable_offset_lag: Number of offsets from the last stable offset to the end of the log; absent without
    an open transaction.
korvet_consumer_group_lag_records: Number of records that the group has not committed, or that a share group is not done
    with. Above metrics.partitions.max partitions of groups it is the sum by topic, and group (other) is all other
    groups.
korvet_consumer_group_lag_seconds: Age of the first of these records by its timestamp (storage format batch: by the
    first timestamp of its batch); 0 without lag, and the largest of all that are summed.
korvet_consumer_group_offset: Offset that the group has committed, or of a share group the start. Above
    metrics.partitions.max partitions of groups it is absent.
korvet_consumer_group_members: Number of members of the group. Above metrics.partitions.max groups, group (other) is the
    sum of the smallest ones.
korvet_consumer_group_generation: Generation of the group, or epoch of one of the consumer protocol, which grows by one
    with each rebalance.
korvet_consumer_group_rebalances: Number of rebalances of the group: its generation as a counter, which starts again
    with a new group.
korvet_consumer_groups: Number of groups by state.
korvet_transactional_ids: Number of transactional ids by the state of their transaction.
korvet_transaction_oldest_age_seconds: Age of the oldest open transaction; absent without one.
korvet_lake_archived_offset: Next offset to archive: all records below it are in the lake.
korvet_lake_lag_records: Number of records that are not archived yet.
korvet_lake_lag_seconds: Time since the oldest record that is not archived was appended, or in format `batch` was seen
    by the keeper; 0 if all are.
korvet_lake_rounds: Number of archiving rounds by outcome: archived, idle (nothing to archive), failed (at least in
    part).
korvet_lake_upkeeps: Number of maintenance rounds on tables by outcome: done, failed.
korvet_lake_archived_records: Number of archived records.
korvet_lake_archived_bytes: Size of the files written by archiving.
korvet_lake_archived_files: Number of files written by archiving.
korvet_lake_conflicts: Number of commits that failed because another archiver committed first; nothing is lost.
korvet_lake_lost_ranges: Number of offset ranges that left Redis before they were archived, without being deleted by a
    user.
korvet_lake_compacted_files: Number of small files that were merged into larger ones.
korvet_lake_expired_files: Number of files removed from tables by retention.
korvet_lake_expired_records: Number of records removed from the lake by retention.
korvet_lake_archiver_leader: 1 if the archiver of this broker holds the lease.
korvet_lake_table_files: Number of files in the table of the topic.
korvet_lake_table_records: Number of records in the table of the topic.
korvet_lake_table_bytes: Size of the files in the table of the topic.
korvet_lake_table_unreadable_batches: Number of batches that did not decode: they were archived as bytes beside the
    table, not as records.
korvet_pipeline_state: 1 for the state of the pipeline, 0 for all others: starting, running, stopped, completed (it had
    read all that there was), failed, lost (its process does not renew its lease).
korvet_pipeline_lag_records: Number of records in Redis that the pipeline has not read, of topics that it has read.
korvet_pipeline_lag_seconds: Age of the first of these records by its timestamp; 0 without lag.
korvet_pipeline_records: Number of records that the pipeline has read.
korvet_pipeline_dead_letters: Number of records that went to the pipeline's table of dead letters: they did not decode,
    or were not as expected.
korvet_pipeline_unread_fields: Number of records with fields that the pipeline's schema lacks.
korvet_pipeline_unmet_expectations: Number of records that did not meet an expectation of the pipeline's file, counted
    for each.
korvet_pipeline_restarts: Number of starts of the pipeline after an end that nobody had asked for.
korvet_pipeline_last_batch_timestamp_seconds: Time when the last batch with records ended; absent before the first.
korvet_pipeline_last_batch_seconds: Duration of that batch.
korvet_pipeline_lost_offsets: Number of offsets that were deleted before the pipeline read them, and that it passed
    over. Above metrics.partitions.max partitions it is the sum by topic, and topic (other) is all other topics.

# Reported by Redis
korvet_redis_uptime_seconds: Time since Redis started.
korvet_redis_memory_used_bytes: Memory that Redis has allocated.
korvet_redis_memory_max_bytes: Memory limit of Redis (maxmemory); 0 without a limit.
korvet_redis_memory_resident_bytes: Resident memory of the Redis process.
korvet_redis_evicted_keys: Number of keys that Redis evicted: each is lost data, and maxmemory-policy must be
    noeviction.
korvet_redis_aof_enabled: 1 if Redis writes an append-only file; without one a restart loses records.
korvet_redis_aof_size_bytes: Size of the append-only file.
korvet_redis_aof_delayed_fsyncs: Number of writes that Redis delayed because an fsync was still in progress: the disk is
    too slow.
korvet_redis_aof_rewrite_in_progress: 1 while Redis rewrites the append-only file.
korvet_redis_last_fork_seconds: Duration of the last fork of Redis, for a snapshot or a rewrite; it answers no client
    meanwhile.
korvet_redis_unsaved_changes: Number of changes since the last snapshot (RDB).
korvet_redis_last_save_timestamp_seconds: Time of the last successful snapshot (RDB).
korvet_redis_connected_clients: Number of client connections of Redis, those of Korvet and of others.
korvet_redis_max_clients: Connection limit of Redis (maxclients).
korvet_redis_rejected_connections: Number of connections that Redis rejected because of maxclients.
korvet_redis_connected_replicas: Number of replicas of this Redis.
korvet_redis_is_master: 1 if this Redis accepts writes, 0 if it is a replica.
korvet_redis_commands: Number of commands that Redis has run, including those in scripts.
korvet_redis_received_bytes: Bytes that Redis has read from its clients.
korvet_redis_sent_bytes: Bytes that Redis has written to its clients.
korvet_redis_cpu_seconds: CPU time of the Redis process, including system calls, without its child processes.
korvet_redis_replicas_wanted: Number of replicas that Redis must have by the settings replicas and min.insync.replicas.
korvet_redis_up: 1 if Redis answered the process that serves this page within a second.
korvet_redis_persistence_ok: 1 if the last attempt of Redis to persist its data succeeded: snapshot, aof_write,
    aof_rewrite.
korvet_redis_slow_commands: Number of commands and scripts that took longer than slowlog-log-slower-than, by the ids in
    SLOWLOG; absent if the user may not read it.
korvet_redis_info: Always 1; the server and its version.
"""

HELP = {name: text for group in by_group(_TEXT).values() for name, text in group.items()}
