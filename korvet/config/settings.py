"""The settings of a broker: a row for each, with type, default, limits and purpose.

A setting's name is its attribute's with "." for "_". Settings that Kafka has keep Kafka's names and defaults (its
documentation, "Broker Configs"); the name of one of Korvet's own ends with its unit.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import msgspec

from korvet.config import values
from korvet.config.definition import INT32_MAX, INT64_MAX, ConfigDef, Value
from korvet.config.listeners import advertised_listeners, listeners_to_bind
from korvet.config.values import Form, optional
from korvet.protocol.types import ConfigType

_DAY_MS = 86_400_000


def _fixed(
    doc: str, form: Form | None = None, *, least: int = 0, most: int = INT32_MAX, secret: bool = False
) -> ConfigDef:
    """Describe a setting that is read once, when the supervisor starts."""
    return ConfigDef(doc, least, most, form, reload=False, secret=secret)


def _dynamic(doc: str, least: int = 0, most: int = INT32_MAX, form: Form | None = None) -> ConfigDef:
    """Describe a setting that clients may alter while brokers run."""
    return ConfigDef(doc, least, most, form, dynamic=True)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, read once and passed down."""

    listen: Annotated[
        str,
        _fixed(
            "Address and port that Kafka clients connect to; port 0 takes a free one.", values.listen_address
        ),
    ] = "127.0.0.1:9092"
    advertised: Annotated[
        str,
        ConfigDef(
            "Address and port advertised to clients; empty: the address of `listen`.",
            form=optional(values.advertised_address),
        ),
    ] = ""
    listeners: Annotated[
        str,
        ConfigDef(
            "`NAME://HOST:PORT,...`: several listeners, instead of `listen`.",
            form=optional(listeners_to_bind),
            type=ConfigType.LIST,
            reload=False,
        ),
    ] = ""
    advertised_listeners: Annotated[
        str,
        ConfigDef(
            "`NAME://HOST:PORT,...` advertised to clients of each listener; one left out advertises its `listeners`.",
            form=optional(advertised_listeners),
            type=ConfigType.LIST,
        ),
    ] = ""
    ops_listen: Annotated[
        str,
        _fixed(
            "Address and port of the console, /healthz, /readyz and /metrics; empty switches them off.",
            optional(values.listen_address),
        ),
    ] = "127.0.0.1:9093"
    console_enable: Annotated[bool, ConfigDef("Serve the console at `ops.listen`, with all records.")] = True
    console_hosts: Annotated[
        str,
        ConfigDef(
            "Host names by which browsers may call the console; * is any.", form=optional(values.host_names)
        ),
    ] = ""
    console_token_file: Annotated[
        str,
        ConfigDef("File with the token that the console requires for changes.", form=optional(values.path)),
    ] = ""
    redis_url: Annotated[
        str,
        _fixed(
            "Redis >= 7.0 or Valkey >= 7.2 that holds the log; empty starts the embedded server.",
            optional(values.redis_url),
            secret=True,
        ),
    ] = ""
    data_dir: Annotated[str, _fixed("Directory of the embedded server's data.", values.path)] = (
        "./korvet-data"
    )
    workers: Annotated[int, _fixed("Worker processes; 0 is one per core.", most=1024)] = 0
    broker_id: Annotated[
        int, _fixed("Id of this broker, unique among all on one Redis; -1 takes a free one.", least=-1)
    ] = 0
    cluster_id: Annotated[
        str,
        _fixed(
            "Id of the cluster, stored in Redis by its first broker; empty: the one in Redis.",
            optional(values.name),
        ),
    ] = ""
    namespace: Annotated[str, _fixed("First part of every key in Redis.", values.name)] = "korvet"

    log_format: Annotated[Literal["text", "json"], ConfigDef("Form of the log lines on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _dynamic("Lowest level of the log lines written.")
    ] = "info"
    log_levels: Annotated[
        str,
        ConfigDef(
            "Levels of single loggers, `LOGGER=LEVEL`, comma-separated, as in korvet.groups=debug; a logger is a"
            " module or a package, and names those below it too.",
            form=values.log_levels,
            type=ConfigType.LIST,
            dynamic=True,
        ),
    ] = ""
    drain_timeout_ms: Annotated[
        int, ConfigDef("How long a stopping worker may take to finish its requests.")
    ] = 10_000
    drain_delay_ms: Annotated[
        int,
        ConfigDef(
            "How long a stopping broker reports in /readyz that it drains, and serves on, before it refuses clients."
        ),
    ] = 0

    redis_timeout_ms: Annotated[int, ConfigDef("How long a command may take in Redis.", least=1)] = 5_000
    redis_connect_timeout_ms: Annotated[
        int, ConfigDef("How long a connection to Redis may take.", least=1)
    ] = 2_000
    replicas: Annotated[
        int,
        ConfigDef(
            "Redis replicas that must hold a batch before a produce request with acks=all is answered.",
            most=64,
        ),
    ] = 0
    lake_path: Annotated[
        str,
        _fixed(
            "Directory or URI of the archive of topics with remote.storage.enable; empty: no archive.",
            optional(values.archive),
        ),
    ] = ""
    lake_storage_options: Annotated[
        str,
        _fixed(
            "Options of the archive's object store, as NAME=VALUE, comma-separated: credentials, region, endpoint.",
            values.storage_options,
            secret=True,
        ),
    ] = ""
    lake_interval_ms: Annotated[
        int, ConfigDef("Pause between rounds of archiving; 0: brokers leave it to `korvet lake archive`.")
    ] = 10_000
    lake_upkeep_interval_ms: Annotated[
        int, ConfigDef("Pause between rounds of compaction and expiry in the archive; 0: brokers do neither.")
    ] = 300_000
    lake_master: Annotated[
        str,
        ConfigDef("Spark that archives: local[CORES,TRIES], or a cluster's URL.", form=values.spark_master),
    ] = "local[2,4]"
    remote_fetch_max_wait_ms: Annotated[
        int,
        ConfigDef("How long a fetch waits for the archive; what is read later is returned by a later fetch."),
    ] = 500
    remote_list_offsets_request_timeout_ms: Annotated[
        int, ConfigDef("How long a look-up by time may take in the archive.", least=1)
    ] = 30_000
    embedded_maxmemory_bytes: Annotated[
        int,
        _fixed(
            "Memory limit of the embedded server; 0 is none. At the limit it refuses writes.", most=INT64_MAX
        ),
    ] = 0
    embedded_disk_max_bytes: Annotated[
        int,
        ConfigDef("Limit for the files in the embedded server's data directory; 0 is none.", most=INT64_MAX),
    ] = 0
    memory_throttle_percent: Annotated[
        int,
        _dynamic(
            "Share of Redis' maxmemory, or of embedded.disk.max.bytes, from which producers are throttled.",
            1,
            100,
        ),
    ] = 85
    memory_refuse_percent: Annotated[
        int, _dynamic("Share of it from which producers are refused, with a retriable error.", 1, 100)
    ] = 95
    throttle_max_ms: Annotated[
        int, _dynamic("Longest throttling of a producer's connection, just before refusal.", most=10_000)
    ] = 1_000

    auto_create_topics_enable: Annotated[
        bool, ConfigDef("Create a topic when a client asks for its metadata.")
    ] = True
    num_partitions: Annotated[
        int, ConfigDef("Partitions of a topic created without a count.", least=1, most=100_000)
    ] = 1
    default_replication_factor: Annotated[
        int,
        ConfigDef(
            "Replication factor of a topic created without one; any is accepted and reported as 1.", 1, 32_767
        ),
    ] = 1
    delete_topic_enable: Annotated[bool, ConfigDef("Let clients delete topics.")] = True
    topic_reserved_prefix: Annotated[
        str,
        ConfigDef(
            "Prefix of topic names that clients cannot create; empty reserves none.", form=values.topic_prefix
        ),
    ] = "__"

    message_max_bytes: Annotated[int, _dynamic("Largest record batch, as the producer compressed it.")] = (
        1_048_588
    )
    socket_request_max_bytes: Annotated[int, ConfigDef("Largest produce request.", least=1024)] = 104_857_600
    request_control_max_bytes: Annotated[
        int, ConfigDef("Largest request of every other kind.", least=1024)
    ] = 16_777_216
    queued_max_request_bytes: Annotated[
        int,
        ConfigDef(
            "Bytes of requests in one worker, and as many of their records decoded; more wait.",
            1024,
            INT64_MAX,
        ),
    ] = 268_435_456
    record_decompressed_max_bytes: Annotated[
        int,
        ConfigDef(
            "Largest size of a record batch once decompressed; in format record it also limits how long one append"
            " holds Redis.",
            least=1024,
        ),
    ] = 16_777_216
    fetch_max_bytes: Annotated[
        int, ConfigDef("Largest fetch response, except for a single batch that is larger.", 1024)
    ] = 57_671_680
    connections_max_idle_ms: Annotated[
        int, ConfigDef("Close a connection after this time without a request; -1 never does.", -1, INT64_MAX)
    ] = 600_000
    max_connections: Annotated[int, _dynamic("Connections of one worker.", least=1)] = INT32_MAX
    connection_receive_timeout_ms: Annotated[
        int,
        ConfigDef("Close a connection after this time without progress of a request begun on it.", least=1),
    ] = 30_000

    log_retention_ms: Annotated[
        int, _dynamic("How long records are kept; -1 is without limit.", -1, INT64_MAX)
    ] = 7 * _DAY_MS
    log_retention_bytes: Annotated[
        int, _dynamic("Bytes that a partition keeps; -1 is without limit.", -1, INT64_MAX)
    ] = -1
    log_retention_check_interval_ms: Annotated[
        int, ConfigDef("Pause between two rounds of the keeper.", 1, INT64_MAX)
    ] = 300_000
    log_local_retention_ms: Annotated[
        int,
        _dynamic(
            "How long a topic with a remote tier keeps records in Redis; -2 is log.retention.ms.",
            -2,
            INT64_MAX,
        ),
    ] = -2
    log_local_retention_bytes: Annotated[
        int,
        _dynamic(
            "Bytes that a partition with a remote tier keeps in Redis; -2 is log.retention.bytes.",
            -2,
            INT64_MAX,
        ),
    ] = -2
    log_cleanup_policy: Annotated[
        str,
        ConfigDef(
            "Cleanup of old records: delete, compact, or both with a comma; empty keeps them all.",
            choices=("compact", "delete"),
            type=ConfigType.LIST,
            dynamic=True,
        ),
    ] = "delete"
    log_roll_ms: Annotated[
        int,
        _dynamic("Age from which the newest records of a quiet log may be compacted too.", 1, INT64_MAX),
    ] = 7 * _DAY_MS
    log_cleaner_enable: Annotated[bool, ConfigDef("Compact the topics whose cleanup.policy says so.")] = True
    log_cleaner_backoff_ms: Annotated[
        int, _dynamic("Pause between two searches for logs to compact.", 1, INT64_MAX)
    ] = 15_000
    log_cleaner_dedupe_buffer_size: Annotated[
        int, _dynamic("Bytes for the keys of one compaction; more keys take more passes.", 65_536, INT64_MAX)
    ] = 134_217_728
    log_cleaner_delete_retention_ms: Annotated[
        int, _dynamic("How long a compacted topic keeps the tombstones of deleted keys.", 0, INT64_MAX)
    ] = _DAY_MS
    log_cleaner_min_cleanable_ratio: Annotated[
        float, _dynamic("Uncompacted share of a log from which it is compacted again.", 0, 1)
    ] = 0.5
    log_cleaner_min_compaction_lag_ms: Annotated[
        int, _dynamic("Age under which a record is not compacted.", 0, INT64_MAX)
    ] = 0
    log_cleaner_max_compaction_lag_ms: Annotated[
        int, _dynamic("Age at which a record is compacted at any ratio.", 1, INT64_MAX)
    ] = INT64_MAX
    log_message_timestamp_type: Annotated[
        Literal["CreateTime", "LogAppendTime"],
        _dynamic("Timestamp of a record: the producer's, or the time of its append."),
    ] = "CreateTime"
    log_message_timestamp_before_max_ms: Annotated[
        int, _dynamic("How far a producer's timestamp may lie in the past.", 0, INT64_MAX)
    ] = INT64_MAX
    log_message_timestamp_after_max_ms: Annotated[
        int, _dynamic("How far a producer's timestamp may lie in the future.", 0, INT64_MAX)
    ] = 3_600_000
    compression_type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], _dynamic("Codec of the batches that consumers get.")
    ] = "none"
    storage_format: Annotated[
        Literal["record", "batch"],
        _dynamic("Layout of a new topic in Redis: a stream entry for each record, or for each batch."),
    ] = "record"
    storage_format_topics: Annotated[
        str,
        ConfigDef(
            "Storage formats by topic name, `PATTERN=FORMAT` with shell wildcards, comma-separated; the first match"
            " counts, before storage.format.",
            form=values.format_patterns,
            type=ConfigType.LIST,
            dynamic=True,
        ),
    ] = ""
    storage_compression: Annotated[
        Literal["none", "lz4", "zstd"],
        _dynamic("Codec of large record values, and of uncompressed batches, in Redis."),
    ] = "lz4"
    storage_compression_min_bytes: Annotated[
        int, _dynamic("Smallest record value, or batch, that is compressed in Redis.")
    ] = 1024
    offset_sequence_bits: Annotated[
        int,
        _dynamic("Low bits of an offset in a new topic; the high bits are milliseconds.", least=8, most=12),
    ] = 10

    producer_id_expiration_ms: Annotated[
        int, _dynamic("Expire a producer id after this time without a batch.", least=1)
    ] = _DAY_MS
    group_initial_rebalance_delay_ms: Annotated[
        int, ConfigDef("How long the first rebalance of a group waits for more members.")
    ] = 3_000
    group_min_session_timeout_ms: Annotated[
        int, ConfigDef("Shortest session timeout of a group member.", 1)
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        int, ConfigDef("Longest session timeout of a group member.", 1)
    ] = 1_800_000
    group_max_size: Annotated[int, ConfigDef("Most members of a group.", least=1)] = INT32_MAX
    offsets_retention_minutes: Annotated[
        int, ConfigDef("How long an empty group's committed offsets are kept.", least=1)
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        int,
        ConfigDef("Pause between two searches of the keeper for expired offsets.", 1, INT64_MAX),
    ] = 600_000
    offset_metadata_max_bytes: Annotated[int, ConfigDef("Largest metadata text of a committed offset.")] = (
        4_096
    )
    group_mirror: Annotated[
        bool, ConfigDef("Show committed offsets to users of Redis, as consumer groups of the streams.")
    ] = True
    log_figures_interval_ms: Annotated[
        int,
        ConfigDef(
            "Pause between two collections of the sizes and ages of logs for /metrics, by the keeper.",
            least=100,
        ),
    ] = 60_000
    metrics_partitions_max: Annotated[
        int, ConfigDef("Partitions with metrics of their own in /metrics; more are summed by topic.")
    ] = 1_000
    broker_lease_ms: Annotated[
        int,
        ConfigDef(
            "How long clients are still sent to a broker that went silent, and its id is kept.", least=100
        ),
    ] = 9_000
    keeper_lease_ms: Annotated[
        int, ConfigDef("How long a keeper that went silent holds its lease.", least=100)
    ] = 10_000
    subscription_linger_ms: Annotated[
        int, ConfigDef("How long a worker stays subscribed to a partition without a waiting fetch.")
    ] = 30_000

    def __repr__(self) -> str:
        """Name what differs from its default, without secrets: a settings object may end up in a log line."""
        changed = [each for each in SETTINGS.values() if each.value(self) != each.default]
        return f"Settings({', '.join(f'{each.attribute}={each.format(each.value(self))!r}' for each in changed)})"


_TYPES = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, int: ConfigType.INT}


def _definition(attribute: str, hint: object, default: Value) -> ConfigDef:
    described: ConfigDef
    python_type, described = get_args(hint)
    choices = get_args(python_type) if get_origin(python_type) is Literal else described.choices
    config_type = _TYPES.get(python_type, described.type)
    if config_type is ConfigType.INT and described.most > INT32_MAX:
        config_type = ConfigType.LONG
    return msgspec.structs.replace(
        described,
        name=attribute.replace("_", "."),
        attribute=attribute,
        default=default,
        choices=choices,
        type=ConfigType.PASSWORD if described.secret else config_type,
    )


def _table() -> dict[str, ConfigDef]:
    hints = get_type_hints(Settings, include_extras=True)
    found = (
        _definition(field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(Settings)
    )
    return {each.name: each for each in found}


SETTINGS = _table()
"""The definitions by name, in the order of their declaration."""


def _throttle(name: str) -> ConfigDef:
    return ConfigDef(
        "Bytes a second that replicas move in Kafka while partitions are reassigned. Has no effect here.",
        most=INT64_MAX,
        name=name,
        type=ConfigType.LONG,
        default=INT64_MAX,
        dynamic=True,
    )


WITHOUT_EFFECT = {
    name: _throttle(name)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""Kafka's tools set and delete these at brokers: they are accepted, kept and listed."""

BROKER_CONFIGS = dict(sorted((SETTINGS | WITHOUT_EFFECT).items()))
"""All that a broker describes to clients, by name."""

DYNAMIC_CONFIGS = {name: each for name, each in BROKER_CONFIGS.items() if each.dynamic}
"""Those that clients may alter while brokers run."""
