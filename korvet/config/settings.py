"""The settings of a broker: a row for each, with type, default, limits and purpose.

A setting's name is its attribute's with "." for "_". Settings that Kafka has keep Kafka's names and defaults (its
documentation, "Broker Configs"); the name of one of Korvet's own ends with its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

import msgspec

from korvet.config import values
from korvet.config.definition import INT32_MAX, INT64_MAX, INT64_MIN, ConfigDef, Value, definition_of
from korvet.config.definition import dynamic as _dynamic
from korvet.config.definition import fixed as _fixed
from korvet.config.definition import of_listener as _of_listener
from korvet.config.definition import of_mechanism as _of_mechanism
from korvet.config.definition import setting as _setting
from korvet.config.listeners import (
    PROTOCOL_MAP,
    SASL_MECHANISMS,
    SecurityProtocol,
    advertised_listeners,
    listeners_to_bind,
    parse_protocol_map,
    protocol_map,
)
from korvet.config.values import optional
from korvet.protocol.types import ConfigType

_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Settings:
    """Every setting, read once and passed down."""

    listen: str = _fixed(
        "127.0.0.1:9092",
        "Address and port that Kafka clients connect to; port 0 takes a free one.",
        form=values.listen_address,
    )
    advertised: str = _setting(
        "",
        "Address and port advertised to clients; empty: the address of `listen`.",
        form=optional(values.advertised_address),
    )
    listeners: str = _fixed(
        "",
        "`NAME://HOST:PORT,...`: several listeners, instead of `listen`.",
        form=optional(listeners_to_bind),
        type=ConfigType.LIST,
    )
    advertised_listeners: str = _setting(
        "",
        "`NAME://HOST:PORT,...` advertised to clients of each listener; one left out advertises its `listeners`.",
        form=optional(advertised_listeners),
        type=ConfigType.LIST,
    )
    listener_security_protocol_map: str = _setting(
        PROTOCOL_MAP,
        "`NAME:PROTOCOL,...`: how each listener is secured, by PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        form=protocol_map,
        type=ConfigType.LIST,
    )
    overrides: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """What single listeners have otherwise, by name in upper case and by attribute: see `for_listener`."""

    ssl_keystore_type: Literal["PEM"] = _of_listener("PEM", "Form of the key store.")
    ssl_keystore_location: str = _of_listener(
        "", "File with a listener's private key and certificate chain, in PEM.", form=optional(values.path)
    )
    ssl_keystore_certificate_chain: str = _of_listener(
        "", "Certificate chain in PEM, instead of `ssl.keystore.location`.", form=values.pem, secret=True
    )
    ssl_keystore_key: str = _of_listener(
        "", "Private key in PEM, for `ssl.keystore.certificate.chain`.", form=values.pem, secret=True
    )
    ssl_key_password: str = _of_listener("", "Password of a private key that is encrypted.", secret=True)
    ssl_truststore_type: Literal["PEM"] = _of_listener("PEM", "Form of the trust store.")
    ssl_truststore_location: str = _of_listener(
        "", "File with the CAs of clients' certificates, in PEM.", form=optional(values.path)
    )
    ssl_truststore_certificates: str = _of_listener(
        "",
        "CAs of clients' certificates in PEM, instead of `ssl.truststore.location`.",
        form=values.pem,
        secret=True,
    )
    ssl_client_auth: Literal["none", "requested", "required"] = _of_listener(
        "none", "Whether clients have to show a certificate."
    )
    ssl_enabled_protocols: str = _of_listener(
        "TLSv1.2,TLSv1.3", "Versions of TLS.", choices=("TLSv1.2", "TLSv1.3"), type=ConfigType.LIST
    )
    ssl_protocol: Literal["TLSv1.2", "TLSv1.3"] = _of_listener("TLSv1.3", "Newest version of TLS.")
    ssl_cipher_suites: str = _of_listener(
        "", "Cipher suites, by IANA's or OpenSSL's names; empty: all.", type=ConfigType.LIST
    )
    ssl_principal_mapping_rules: str = _of_listener(
        "DEFAULT", "`RULE:PATTERN/REPLACEMENT/[LU],...,DEFAULT`: from a certificate's name to a user's."
    )
    authorizer_class_name: str = _setting(
        "",
        "What decides on the rights of clients: StandardAuthorizer, by ACLs; empty: all may do all.",
        form=optional(values.authorizer),
    )
    super_users: str = _setting(
        "",
        "Users with every right, whatever ACLs say: `User:NAME;User:NAME`.",
        form=optional(values.principals),
    )
    allow_everyone_if_no_acl_found: bool = _setting(
        False, "Let everybody use what no ACL is about; otherwise only super users may."
    )
    authorizer_cache_max_age_ms: int = _setting(
        60_000,
        "How long the ACLs last read count while Redis is away; then requests are refused, with a retriable error.",
        10_000,
        INT64_MAX,
    )

    sasl_enabled_mechanisms: str = _of_listener(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Mechanisms by which clients log in; Kafka's default, GSSAPI, is not supported.",
        choices=SASL_MECHANISMS,
        type=ConfigType.LIST,
    )
    sasl_plain_users_file: str = _of_listener(
        "",
        "TOML file with users and passwords for PLAIN, in place of Kafka's JAAS file; other users log in by PLAIN with"
        " their SCRAM passwords.",
        form=optional(values.path),
    )
    sasl_server_max_receive_size: int = _of_listener(
        524_288, "Largest request of a client that has not logged in.", least=1024
    )
    connections_max_reauth_ms: int = _of_mechanism(
        0,
        "How long a client may work before it has to log in again, or its connection is closed; 0 is without limit.",
        most=INT64_MAX,
    )
    connection_failed_authentication_delay_ms: int = _setting(
        100, "How long a client that fails to log in waits for the answer; its connection is closed then."
    )

    sasl_oauthbearer_jwks_endpoint_url: str = _of_mechanism(
        "",
        "Where the identity provider has the public keys (JWKS) that tokens are signed with: http, https or file.",
        form=optional(values.jwks_url),
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _of_mechanism(
        3_600_000, "How long these keys count before they are fetched again.", 1, INT64_MAX
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = _of_mechanism(
        100, "Pause before they are fetched again for a key that is not among them, or after a failure.", 1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = _of_mechanism(
        10_000, "Longest of these pauses, which double.", 1
    )
    sasl_oauthbearer_expected_audience: str = _of_mechanism(
        "", "Audiences (`aud`) of which a token must have one; empty: any.", type=ConfigType.LIST
    )
    sasl_oauthbearer_expected_issuer: str = _of_mechanism(
        "", "Issuer (`iss`) that a token must have; empty: any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = _of_mechanism(
        30, "How far the clocks of provider and broker may differ."
    )
    sasl_oauthbearer_sub_claim_name: str = _of_mechanism("sub", "Claim of a token that names the user.")
    sasl_oauthbearer_scope_claim_name: str = _of_mechanism(
        "scope", "Claim that holds the scopes: a text or a list of texts, or the token does not count."
    )

    ops_listen: str = _fixed(
        "127.0.0.1:9093",
        "Address and port of the console, /healthz, /readyz and /metrics; empty switches them off.",
        form=optional(values.listen_address),
    )
    ops_allowed_hosts: str = _setting(
        "",
        "Host names by which the console and /metrics may be requested, besides addresses and localhost; * is any.",
        form=optional(values.host_names),
    )
    ops_ssl_keystore_location: str = _setting(
        "", "PEM file with key and certificates by which `ops.listen` speaks TLS.", form=optional(values.path)
    )
    ops_ssl_key_password: str = _setting("", "Password of that private key if it is encrypted.", secret=True)
    console_enable: bool = _setting(True, "Serve the console at `ops.listen`, with all records.")
    console_token_file: str = _setting(
        "", "File with the token that the console requires for changes.", form=optional(values.path)
    )
    console_client_config: str = _setting(
        "", "File with client configs by which the console uses its broker.", form=optional(values.path)
    )
    console_read_token_file: str = _setting(
        "", "File with the token that console and /metrics require to be read.", form=optional(values.path)
    )
    redis_url: str = _fixed(
        "",
        "Redis >= 7.0 or Valkey >= 7.2 with the log, its Sentinels, or a cluster; empty starts the embedded server.",
        form=optional(values.redis_url),
        secret=True,
    )
    redis_password_file: str = _fixed(
        "", "File with the password for redis.url, which then has none.", form=optional(values.path)
    )
    data_dir: str = _fixed("./korvet-data", "Directory of the embedded server's data.", form=values.path)
    workers: int = _fixed(0, "Worker processes; 0 is one per core, and on macOS one.", 0, 1024)
    broker_id: int = _fixed(
        0, "Id of this broker, unique among all on one Redis; -1 takes a free one.", least=-1
    )
    cluster_id: str = _fixed(
        "",
        "Id of the cluster, stored in Redis by its first broker; empty: the one in Redis.",
        form=optional(values.name),
    )
    namespace: str = _fixed("korvet", "First part of every key in Redis.", form=values.name)

    log_format: Literal["text", "json"] = _setting("text", "Form of the log lines on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = _dynamic(
        "info", "Lowest level of the log lines written."
    )
    log_levels: str = _dynamic(
        "",
        "Levels of single loggers, `LOGGER=LEVEL`, comma-separated, as in korvet.groups=debug; a logger is a "
        "module or a package, and names those below it too.",
        form=values.log_levels,
        type=ConfigType.LIST,
    )
    drain_timeout_ms: int = _setting(10_000, "How long a stopping worker may take to finish its requests.")
    drain_delay_ms: int = _setting(
        0,
        "How long a stopping broker reports in /readyz that it drains, and serves on, before it refuses clients.",
    )

    redis_timeout_ms: int = _setting(5_000, "How long a command may take in Redis.", least=1)
    redis_connect_timeout_ms: int = _setting(2_000, "How long a connection to Redis may take.", least=1)
    redis_read_max_bytes: int = _fixed(
        16_777_216,
        "Bytes of records that one worker asks of Redis at once, as it expects them to weigh; other fetches wait.",
        1_048_576,
        INT64_MAX,
    )
    replicas: int = _setting(
        0,
        "Redis replicas that must hold a batch (acks=all), a commit, or a change of groups, topics or configs"
        " before it is answered.",
        0,
        64,
    )
    min_insync_replicas: int = _dynamic(
        1,
        "Servers of Redis, the master included, that must be in sync, or acks=all is refused; acks=all waits for them.",
        1,
        65,
    )
    lake_path: str = _fixed(
        "",
        "Directory or URI of the archive of topics with remote.storage.enable; empty: no archive.",
        form=optional(values.archive),
    )
    lake_storage_options: str = _fixed(
        "",
        "Options of the archive's object store, as NAME=VALUE, comma-separated: credentials, region, endpoint.",
        form=values.storage_options,
        secret=True,
    )
    lake_iceberg_catalog: str = _fixed(
        "",
        "Iceberg catalog that has the archive's tables too, by pyiceberg's properties as NAME=VALUE, comma-separated,"
        " as in `type=sql,uri=sqlite:////FILE`; empty: none.",
        form=values.storage_options,
        secret=True,
    )
    lake_interval_ms: int = _setting(
        10_000, "Pause between rounds of archiving; 0: brokers leave it to `korvet lake archive`."
    )
    lake_upkeep_interval_ms: int = _setting(
        300_000, "Pause between rounds of compaction and expiry in the archive; 0: brokers do neither."
    )
    lake_master: str = _setting(
        "local[2,4]", "Spark that archives: local[CORES,TRIES], or a cluster's URL.", form=values.spark_master
    )
    remote_fetch_max_wait_ms: int = _dynamic(
        500, "How long a fetch waits for the archive; what is read later is returned by a later fetch."
    )
    remote_list_offsets_request_timeout_ms: int = _dynamic(
        30_000, "How long a look-up by time may take in the archive.", least=1
    )
    embedded_maxmemory_bytes: int = _fixed(
        0, "Memory limit of the embedded server; 0 is none. At the limit it refuses writes.", 0, INT64_MAX
    )
    embedded_disk_max_bytes: int = _setting(
        0, "Limit for the files in the embedded server's data directory; 0 is none.", 0, INT64_MAX
    )
    memory_throttle_percent: int = _dynamic(
        85,
        "Share of Redis' maxmemory, or of embedded.disk.max.bytes, from which producers are throttled.",
        1,
        100,
    )
    memory_refuse_percent: int = _dynamic(
        95, "Share of it from which producers are refused, with a retriable error.", 1, 100
    )
    throttle_max_ms: int = _dynamic(
        1_000, "Longest throttling of a producer's connection, just before refusal.", 0, 10_000
    )

    auto_create_topics_enable: bool = _setting(True, "Create a topic when a client asks for its metadata.")
    num_partitions: int = _setting(1, "Partitions of a topic created without a count.", 1, 100_000)
    default_replication_factor: int = _setting(
        1, "Replication factor of a topic created without one; any is accepted and reported as 1.", 1, 32_767
    )
    delete_topic_enable: bool = _setting(True, "Let clients delete topics.")
    topic_reserved_names: str = _setting(
        "__cluster_metadata,__consumer_offsets,__share_group_state,__transaction_state",
        "Names of topics that clients cannot create, with shell wildcards, comma-separated; empty reserves none.",
        form=values.name_patterns,
        type=ConfigType.LIST,
    )

    message_max_bytes: int = _dynamic(1_048_588, "Largest record batch, as the producer compressed it.")
    message_max_records: int = _dynamic(
        30_000,
        "Most records of a batch in format record: all are appended by one script, in which Redis serves nobody else.",
        least=1,
    )
    socket_request_max_bytes: int = _setting(104_857_600, "Largest produce request.", least=1024)
    request_control_max_bytes: int = _setting(16_777_216, "Largest request of every other kind.", least=1024)
    queued_max_request_bytes: int = _setting(
        268_435_456,
        "Bytes of requests in one worker, and as many that are made of their batches; more wait. As many of fetched "
        "records that were not sent yet; responses are smaller then.",
        1024,
        INT64_MAX,
    )
    record_decompressed_max_bytes: int = _setting(
        16_777_216,
        "Largest size of a record batch once decompressed; in format record it also limits how long one "
        "append holds Redis.",
        least=1024,
    )
    fetch_max_bytes: int = _setting(
        57_671_680, "Largest fetch response, except for a single batch that is larger.", least=1024
    )
    max_incremental_fetch_session_cache_slots: int = _fixed(
        1_000,
        "Fetch sessions of a broker, of which each worker has its share; clients without one name all partitions.",
    )
    connections_max_idle_ms: int = _setting(
        600_000, "Close a connection after this time without a request; -1 never does.", -1, INT64_MAX
    )
    max_connections: int = _dynamic(
        INT32_MAX,
        "Connections of a broker, or of a listener; more wait until they are accepted.",
        least=1,
        per_listener=True,
    )
    max_connections_per_ip: int = _dynamic(
        INT32_MAX, "Connections of one address to a broker; more are closed."
    )
    max_connections_per_ip_overrides: str = _dynamic(
        "",
        "`ADDRESS:COUNT,...`: connections of single addresses, instead of max.connections.per.ip.",
        form=values.connection_limits,
        type=ConfigType.LIST,
    )
    max_connection_creation_rate: int = _dynamic(
        INT32_MAX,
        "New connections a second of a broker, or of a listener; more wait until they are accepted.",
        per_listener=True,
    )
    quota_window_num: int = _fixed(
        11, "Samples of a rate that quotas limit; the last of them is the present.", 1, 1_000
    )
    quota_window_size_seconds: int = _fixed(1, "Time span of each sample.", 1, 3_600)
    controller_quota_window_num: int = _fixed(
        11, "Time spans of which controller_mutation_rate allows all changes at once.", 1, 1_000
    )
    controller_quota_window_size_seconds: int = _fixed(1, "Each of these time spans.", 1, 3_600)
    connection_receive_timeout_ms: int = _setting(
        30_000, "Close a connection after this time without progress of a request begun on it.", least=1
    )

    log_retention_ms: int = _dynamic(
        7 * _DAY_MS, "How long records are kept; a negative number is without limit.", INT64_MIN, INT64_MAX
    )
    log_retention_bytes: int = _dynamic(
        -1, "Bytes that a partition keeps; a negative number is without limit.", INT64_MIN, INT64_MAX
    )
    log_retention_check_interval_ms: int = _setting(
        300_000, "Pause between two rounds of the keeper.", 1, INT64_MAX
    )
    log_local_retention_ms: int = _dynamic(
        -2,
        "How long a topic with a remote tier keeps records in Redis; -2 is log.retention.ms.",
        -2,
        INT64_MAX,
    )
    log_local_retention_bytes: int = _dynamic(
        -2,
        "Bytes that a partition with a remote tier keeps in Redis; -2 is log.retention.bytes.",
        -2,
        INT64_MAX,
    )
    log_cleanup_policy: str = _dynamic(
        "delete",
        "Cleanup of old records: delete, compact, or both with a comma; empty keeps them all.",
        choices=("compact", "delete"),
        type=ConfigType.LIST,
    )
    log_roll_ms: int = _dynamic(
        7 * _DAY_MS, "Age from which the newest records of a quiet log may be compacted too.", 1, INT64_MAX
    )
    log_cleaner_enable: bool = _setting(True, "Compact the topics whose cleanup.policy says so.")
    log_cleaner_backoff_ms: int = _dynamic(
        15_000, "Pause between two searches for logs to compact.", 1, INT64_MAX
    )
    log_cleaner_dedupe_buffer_size: int = _dynamic(
        134_217_728, "Bytes for the keys of all compactions; more keys take more passes.", 65_536, INT64_MAX
    )
    log_cleaner_delete_retention_ms: int = _dynamic(
        _DAY_MS, "How long a compacted topic keeps the tombstones of deleted keys.", 0, INT64_MAX
    )
    log_cleaner_min_cleanable_ratio: float = _dynamic(
        0.5, "Uncompacted share of a log from which it is compacted again.", 0, 1
    )
    log_cleaner_min_compaction_lag_ms: int = _dynamic(
        0, "Age under which a record is not compacted.", 0, INT64_MAX
    )
    log_cleaner_max_compaction_lag_ms: int = _dynamic(
        INT64_MAX, "Age at which a record is compacted at any ratio.", 1, INT64_MAX
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = _dynamic(
        "CreateTime", "Timestamp of a record: the producer's, or the time of its append."
    )
    log_message_timestamp_before_max_ms: int = _dynamic(
        INT64_MAX, "How far a producer's timestamp may lie in the past.", 0, INT64_MAX
    )
    log_message_timestamp_after_max_ms: int = _dynamic(
        3_600_000, "How far a producer's timestamp may lie in the future.", 0, INT64_MAX
    )
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = _dynamic(
        "producer", "Codec of the batches that consumers get."
    )
    storage_format: Literal["record", "batch"] = _dynamic(
        "record", "Layout of a new topic in Redis: a stream entry for each record, or for each batch."
    )
    storage_format_topics: str = _dynamic(
        "",
        "Storage formats by topic name, `PATTERN=FORMAT` with shell wildcards, comma-separated; the first "
        "match counts, before storage.format.",
        form=values.format_patterns,
        type=ConfigType.LIST,
    )
    redis_placement: Literal["name", "even"] = _dynamic("name", "Placement of new topics on a Redis Cluster.")
    storage_compression: Literal["none", "lz4", "zstd"] = _dynamic(
        "lz4", "Codec of large record values, and of uncompressed batches, in Redis."
    )
    storage_compression_min_bytes: int = _dynamic(
        1024, "Smallest record value, or batch, that is compressed in Redis."
    )
    offset_encoding: Literal["time", "dense"] = _dynamic(
        "time",
        "Offsets of a new topic in storage format record: made of the time at which Redis added the record, with "
        "gaps, or dense, one after the other. In format batch they are always dense.",
    )
    offset_sequence_bits: int = _dynamic(
        10,
        "Low bits of an offset in a new topic with offset.encoding=time; the high bits are milliseconds. With 12 "
        "offsets end in September 2039.",
        8,
        12,
    )

    producer_id_expiration_ms: int = _dynamic(
        _DAY_MS, "Expire a producer id after this time without a batch.", 1
    )
    transaction_max_timeout_ms: int = _setting(
        900_000, "Longest transaction timeout that a producer may ask for.", least=1
    )
    transactional_id_expiration_ms: int = _setting(
        7 * _DAY_MS, "Expire a transactional id after this time without a transaction.", least=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(
        10_000, "Pause between two searches of the keeper for transactions past their timeout.", least=1
    )
    group_initial_rebalance_delay_ms: int = _setting(3_000, "How long the first rebalance of a group waits.")
    group_min_session_timeout_ms: int = _setting(6_000, "Least session timeout of a classic member.", 1)
    group_max_session_timeout_ms: int = _setting(1_800_000, "Largest session timeout of a classic member.", 1)
    group_max_size: int = _setting(INT32_MAX, "Most members of a group.", least=1)
    group_consumer_session_timeout_ms: int = _setting(45_000, "Session timeout by KIP-848.", 1)
    group_consumer_min_session_timeout_ms: int = _setting(45_000, "Least session timeout of a group.", 1)
    group_consumer_max_session_timeout_ms: int = _setting(60_000, "Largest session timeout of a group.", 1)
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, "Heartbeat interval by KIP-848.", 1)
    group_consumer_min_heartbeat_interval_ms: int = _setting(5_000, "Least such pause of a group.", 1)
    group_consumer_max_heartbeat_interval_ms: int = _setting(15_000, "Largest such pause of a group.", 1)
    group_consumer_max_size: int = _setting(INT32_MAX, "Most members of a KIP-848 group.", 1)
    group_consumer_assignors: str = _setting(
        "uniform,range",
        "Assignors of KIP-848; the first counts if no member names one.",
        choices=("uniform", "range"),
        type=ConfigType.LIST,
    )
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = _setting(
        "bidirectional", "Whether groups with members change to the consumer protocol, or back."
    )
    group_consumer_regex_refresh_interval_ms: int = _setting(
        600_000, "Pause between two matches of a regular expression while no topic changes.", 10_000
    )
    group_share_session_timeout_ms: int = _setting(45_000, "Session timeout of a share group's members.", 1)
    group_share_min_session_timeout_ms: int = _setting(45_000, "Least session timeout of a share group.", 1)
    group_share_max_session_timeout_ms: int = _setting(60_000, "Largest one of a share group.", 1)
    group_share_heartbeat_interval_ms: int = _setting(5_000, "Heartbeat interval of a share group.", 1)
    group_share_min_heartbeat_interval_ms: int = _setting(5_000, "Least such pause of a share group.", 1)
    group_share_max_heartbeat_interval_ms: int = _setting(15_000, "Largest such pause of a share group.", 1)
    group_share_max_size: int = _setting(200, "Most members of a share group.", 1, 1_000)
    group_share_assignors: str = _setting("simple", "Assignors.", choices=("simple",), type=ConfigType.LIST)
    group_share_record_lock_duration_ms: int = _setting(30_000, "Lock of acquired records.", 1_000, 3_600_000)
    group_share_min_record_lock_duration_ms: int = _setting(15_000, "Least lock of a group.", 1_000, 30_000)
    group_share_max_record_lock_duration_ms: int = _setting(60_000, "Largest one.", 30_000, 3_600_000)
    group_share_delivery_count_limit: int = _setting(5, "Most deliveries of a record.", 2, 10)
    group_share_partition_max_record_locks: int = _setting(2_000, "Most locks of a log.", 100, 2_000)
    group_share_max_share_sessions: int = _setting(2_000, "Share sessions of a broker, in all workers.", 1)
    group_streams_session_timeout_ms: int = _setting(45_000, "Session timeout of streams members.", 1)
    group_streams_min_session_timeout_ms: int = _setting(45_000, "Least one of a streams group.", 1)
    group_streams_max_session_timeout_ms: int = _setting(60_000, "Largest one of a streams group.", 1)
    group_streams_heartbeat_interval_ms: int = _setting(5_000, "Heartbeat interval of a streams group.", 1)
    group_streams_min_heartbeat_interval_ms: int = _setting(5_000, "Least such pause of a streams group.", 1)
    group_streams_max_heartbeat_interval_ms: int = _setting(15_000, "Largest such pause of such a group.", 1)
    group_streams_max_size: int = _setting(INT32_MAX, "Most members of a streams group.", 1)
    group_streams_num_standby_replicas: int = _setting(0, "Standby tasks of each stateful task.")
    group_streams_max_standby_replicas: int = _setting(2, "Most standby tasks that a group may have of each.")
    group_streams_initial_rebalance_delay_ms: int = _setting(3_000, "How long its first assignment waits.")
    offsets_retention_minutes: int = _setting(10_080, "How long an empty group keeps its offsets.", 1)
    offsets_retention_check_interval_ms: int = _setting(600_000, "How often that is looked at.", 1, INT64_MAX)
    offset_metadata_max_bytes: int = _setting(4_096, "Largest metadata text of a committed offset.")
    group_mirror: bool = _setting(True, "Show committed offsets as Redis groups of the streams.")
    log_figures_interval_ms: int = _setting(
        15_000,
        "Pause between two collections of the sizes and ages of logs, and of groups' lag, for /metrics, by the keeper;"
        " at least 10 ms for each partition, so that they never take more than some tenths of a per cent of a core.",
        least=100,
    )
    metrics_partitions_max: int = _setting(
        1_000, "Partitions with metrics of their own in /metrics; more are summed by topic."
    )
    broker_lease_ms: int = _setting(
        9_000,
        "How long a broker that went silent keeps its id and its clients, and may change groups and topics.",
        least=100,
    )
    keeper_lease_ms: int = _setting(10_000, "How long a keeper that went silent holds its lease.", least=100)
    subscription_linger_ms: int = _setting(
        30_000,
        "How long a worker stays subscribed to a partition without a waiting fetch or a fetch session.",
    )

    def __repr__(self) -> str:
        """Name what differs from its default, without secrets: a settings object may end up in a log line."""
        changed = [each for each in SETTINGS.values() if each.value(self) != each.default]
        shown = [f"{each.attribute}={each.format(each.value(self))!r}" for each in changed]
        shown += [f"{each.name}={each.format(value)!r}" for each, value in self.of_single_listeners()]
        return f"Settings({', '.join(shown)})"

    def security_protocol(self, listener: str) -> SecurityProtocol:
        return parse_protocol_map(self.listener_security_protocol_map)[listener]

    def for_listener(self, listener: str) -> Settings:
        given: Mapping[str, Any] = self.overrides.get(listener, {})
        return replace(self, **given) if given else self

    def of_single_listeners(self) -> list[tuple[ConfigDef, Value]]:
        """Return what single listeners have otherwise: `listener.name.<name>.<setting>` and its value."""
        by_attribute = {each.attribute: each for each in SETTINGS.values()}
        return [
            (msgspec.structs.replace(each, name=f"listener.name.{listener.lower()}.{each.name}"), value)
            for listener, given in self.overrides.items()
            for each, value in ((by_attribute[attribute], value) for attribute, value in given.items())
        ]


_HINTS = get_type_hints(Settings)
SETTINGS = {
    each.name: each
    for each in (definition_of(field, _HINTS[field.name]) for field in fields(Settings) if field.metadata)
}
"""The definitions by name, in the order of their declaration."""
