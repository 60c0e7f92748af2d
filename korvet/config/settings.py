"""The table of settings: one row each, with type, default, limits and what it is for.

Knows which settings there are; not where their values come from (sources.py) nor who uses them. A setting's
name is its attribute's with "." for "_". Settings that Kafka has keep Kafka's names and defaults (its
documentation, "Broker Configs"); what is Korvet's own says its unit at the end of its name.

One row of the table of settings, as those read it who load, print, document or alter a setting.

Knows what may be said of a setting; not which settings there are (settings.py).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import msgspec

from korvet.config import listeners, values
from korvet.config import listeners as named

Value = str | int | float | bool

VARIABLE_PREFIX = "KORVET_"
_LISTS = (
    *(values.cleanup_policies, values.format_patterns, values.log_levels),
    *(listeners.listeners_or_none, listeners.advertised_listeners_or_none),
)
INT32_MAX = 2**31 - 1


class ConfigDef(msgspec.Struct, frozen=True):
    """What a row says besides type and default: `least` and `most` are for numbers, `form` for texts."""

    doc: str
    least: int = 0
    most: int = INT32_MAX
    form: values.Form | None = None
    reload: bool = True
    """Whether SIGHUP applies a new value: it replaces the workers, not what the supervisor holds open."""
    dynamic: bool = False
    """Whether clients may alter it while brokers run, for one broker or for all of the cluster (KIP-226)."""
    secret: bool = False


class ConfigKey(msgspec.Struct, frozen=True):
    """One setting of the table, as those read it who load, print or document it."""

    name: str
    attribute: str
    kind: type[str | int | float | bool]
    default: Value
    choices: tuple[str, ...]
    about: ConfigDef

    @property
    def environment(self) -> str:
        """Name of its environment variable."""
        return f"{VARIABLE_PREFIX}{self.attribute.upper()}"

    @property
    def allowed(self) -> str:
        """What values it may have, in words; forms of text tell it themselves."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" if len(self.choices) > 1 else self.choices[0]
        if self.kind is bool:
            return "true or false"
        if self.kind is float:
            return f"a number from {self.about.least} to {self.about.most}"
        return f"a whole number from {self.about.least} to {self.about.most}"

    @property
    def is_list(self) -> bool:
        """Whether its text is a list with commas between."""
        return self.about.form in _LISTS

    def of(self, settings: object) -> Value:
        """Return its value in `settings`."""
        value: Value = getattr(settings, self.attribute)
        return value

    def shown(self, value: Value) -> str:
        """Write a value of it as text, as it would be given again, without its secret part."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return self.masked(str(value)) if self.about.secret else str(value)

    def masked(self, text: str) -> str:
        """Return a text that is meant to be its value, and holds a secret, without that."""
        mask = (
            values.without_option_secrets
            if self.about.form is values.storage_options
            else values.without_secrets
        )
        return mask(text)


INT64_MAX = 2**63 - 1
_DAY_MS = 86_400_000


def _fixed(doc: str, form: values.Form | None = None, *, least: int = 0, most: int = INT32_MAX) -> ConfigDef:
    """Describe a setting that is read once, when the supervisor starts."""
    return ConfigDef(doc, least, most, form, reload=False)


def _dynamic(doc: str, least: int = 0, most: int = INT32_MAX, form: values.Form | None = None) -> ConfigDef:
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
            "Address and port told to clients; empty is the address of `listen`.",
            form=values.advertised_address_or_none,
        ),
    ] = ""
    listeners: Annotated[
        str, _fixed("`NAME://HOST:PORT,...`: several ways in, in place of `listen`.", named.listeners_or_none)
    ] = ""
    advertised_listeners: Annotated[
        str,
        ConfigDef(
            "`NAME://HOST:PORT,...` told to clients of each listener; of one left out, that of `listeners`.",
            form=named.advertised_listeners_or_none,
        ),
    ] = ""
    ops_listen: Annotated[
        str,
        _fixed(
            "Address and port of the console, /healthz, /readyz and /metrics; empty switches them off.",
            values.listen_address_or_none,
        ),
    ] = "127.0.0.1:9093"
    console_enable: Annotated[bool, ConfigDef("Serve the console at `ops.listen`, with all records.")] = True
    console_hosts: Annotated[
        str,
        ConfigDef("Names that browsers may call the console by; * is any.", form=values.host_names_or_none),
    ] = ""
    console_token_file: Annotated[
        str, ConfigDef("File with the token that changes by the console take.", form=values.path_or_none)
    ] = ""
    redis_url: Annotated[
        str,
        ConfigDef(
            "Redis >= 7.0 or Valkey >= 7.2 that holds the log; empty starts the embedded server.",
            form=values.redis_url_or_none,
            reload=False,
            secret=True,
        ),
    ] = ""
    data_dir: Annotated[str, _fixed("Directory of the embedded server's data.", values.path)] = (
        "./korvet-data"
    )
    workers: Annotated[int, _fixed("Worker processes; 0 is one per core.", most=1024)] = 0
    broker_id: Annotated[
        int, _fixed("Number of this broker, its own among all on one Redis; -1 takes a free one.", least=-1)
    ] = 0
    cluster_id: Annotated[
        str,
        _fixed(
            "Name of the cluster, kept in Redis at the first start of all; empty is the one that Redis holds.",
            values.name_or_none,
        ),
    ] = ""
    namespace: Annotated[str, _fixed("First part of every key in Redis.", values.name)] = "korvet"

    log_format: Annotated[Literal["text", "json"], ConfigDef("Form of the log lines on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _dynamic("Least important log lines to write.")
    ] = "info"
    log_levels: Annotated[
        str,
        _dynamic(
            "Other levels for parts of Korvet, `LOGGER=LEVEL`, comma-separated, as in korvet.groups=debug; a"
            " logger is a module or a package, and names those below it too.",
            form=values.log_levels,
        ),
    ] = ""
    drain_timeout_ms: Annotated[
        int, ConfigDef("How long a stopping worker may finish what it has begun.")
    ] = 10_000
    drain_delay_ms: Annotated[
        int,
        ConfigDef(
            "How long a stopping broker says in /readyz that it drains, and serves on, before it refuses clients."
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
            "Directory or URI of the archive of topics with remote.storage.enable; empty: there is none.",
            values.lake_or_none,
        ),
    ] = ""
    lake_storage_options: Annotated[
        str,
        ConfigDef(
            "What the archive's object store needs, as NAME=VALUE, comma-separated: credentials, region, endpoint.",
            form=values.storage_options,
            reload=False,
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
        ConfigDef("How long a fetch waits for the archive; what it reads by then comes with a later fetch."),
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
            "From this share of Redis' maxmemory, or of embedded.disk.max.bytes, on producers are throttled.",
            1,
            100,
        ),
    ] = 85
    memory_refuse_percent: Annotated[
        int,
        _dynamic(
            "From this share of it on producers are refused, with an error that they retry.",
            1,
            100,
        ),
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
            "Topics whose names begin so are not created; empty reserves none.", form=values.topic_prefix
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
            "Largest size of a record batch once decompressed; in format record it also bounds how long one append"
            " holds Redis.",
            least=1024,
        ),
    ] = 16_777_216
    fetch_max_bytes: Annotated[
        int, ConfigDef("Largest fetch response, except for a single batch that is larger.", 1024)
    ] = 57_671_680
    connections_max_idle_ms: Annotated[
        int, ConfigDef("Close a connection without a request for so long; -1 never does.", -1, INT64_MAX)
    ] = 600_000
    max_connections: Annotated[int, _dynamic("Connections of one worker.", least=1)] = INT32_MAX
    connection_receive_timeout_ms: Annotated[
        int, ConfigDef("Close a connection on which a begun request does not go on for so long.", least=1)
    ] = 30_000

    log_retention_ms: Annotated[
        int, _dynamic("How long records are kept; -1 is for ever.", -1, INT64_MAX)
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
            "How long a topic with a cold tier keeps records in Redis; -2 is log.retention.ms.", -2, INT64_MAX
        ),
    ] = -2
    log_local_retention_bytes: Annotated[
        int,
        _dynamic(
            "Bytes that a partition with a cold tier keeps in Redis; -2 is log.retention.bytes.",
            -2,
            INT64_MAX,
        ),
    ] = -2
    log_cleanup_policy: Annotated[
        str,
        _dynamic(
            "What becomes of old records: delete, compact, or both with a comma; nothing keeps them all.",
            form=values.cleanup_policies,
        ),
    ] = "delete"
    log_roll_ms: Annotated[
        int,
        _dynamic("Age at which the newest records of a quiet log may be compacted too.", 1, INT64_MAX),
    ] = 7 * _DAY_MS
    log_cleaner_enable: Annotated[bool, ConfigDef("Compact the topics whose cleanup.policy says so.")] = True
    log_cleaner_backoff_ms: Annotated[
        int, _dynamic("Pause between looks for logs that are to be compacted.", 1, INT64_MAX)
    ] = 15_000
    log_cleaner_dedupe_buffer_size: Annotated[
        int, _dynamic("Bytes for the keys of one compaction; more keys take more passes.", 65_536, INT64_MAX)
    ] = 134_217_728
    log_cleaner_delete_retention_ms: Annotated[
        int, _dynamic("How long a compacted topic keeps the tombstones of deleted keys.", 0, INT64_MAX)
    ] = _DAY_MS
    log_cleaner_min_cleanable_ratio: Annotated[
        float, _dynamic("Share of a log that is not compacted yet from which it is compacted again.", 0, 1)
    ] = 0.5
    log_cleaner_min_compaction_lag_ms: Annotated[
        int, _dynamic("Age under which a record is not compacted.", 0, INT64_MAX)
    ] = 0
    log_cleaner_max_compaction_lag_ms: Annotated[
        int, _dynamic("Age at which a record is compacted whatever the ratio.", 1, INT64_MAX)
    ] = INT64_MAX
    log_message_timestamp_type: Annotated[
        Literal["CreateTime", "LogAppendTime"],
        _dynamic("Whose time a record carries: the producer's, or that of the worker that appends it."),
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
        _dynamic(
            "How a new topic lies in Redis: one stream entry for each record, or for each producer's batch."
        ),
    ] = "record"
    storage_format_topics: Annotated[
        str,
        _dynamic(
            "Storage formats by topic name, `PATTERN=FORMAT` with shell wildcards, comma-separated; the first match"
            " counts, before storage.format.",
            form=values.format_patterns,
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
        _dynamic("Low bits of an offset in a new topic; the rest of it are milliseconds.", least=8, most=12),
    ] = 10

    producer_id_expiration_ms: Annotated[
        int, _dynamic("Forget a producer that was silent for so long.", least=1)
    ] = _DAY_MS
    group_initial_rebalance_delay_ms: Annotated[
        int, ConfigDef("How long the first rebalance of a group waits for more members.")
    ] = 3_000
    group_min_session_timeout_ms: Annotated[
        int, ConfigDef("Shortest session time-out of a group member.", 1)
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        int, ConfigDef("Longest session time-out of a group member.", 1)
    ] = 1_800_000
    group_max_size: Annotated[int, ConfigDef("Most members of a group.", least=1)] = INT32_MAX
    offsets_retention_minutes: Annotated[
        int, ConfigDef("How long an empty group's committed offsets are kept.", least=1)
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        int,
        ConfigDef("Pause between two looks of the keeper for offsets that are no longer kept.", 1, INT64_MAX),
    ] = 600_000
    offset_metadata_max_bytes: Annotated[
        int, ConfigDef("Bytes of the note that a consumer may add to a committed offset.")
    ] = 4_096
    group_mirror: Annotated[
        bool, ConfigDef("Show committed offsets to users of Redis, as consumer groups of the streams.")
    ] = True
    log_figures_interval_ms: Annotated[
        int,
        ConfigDef(
            "Pause between two looks of the keeper at sizes and ages of the logs, for /metrics.", least=100
        ),
    ] = 60_000
    metrics_partitions_max: Annotated[
        int, ConfigDef("Partitions with figures of their own in /metrics; more are summed by topic.")
    ] = 1_000
    broker_lease_ms: Annotated[
        int,
        ConfigDef(
            "How long clients are still sent to a broker that went silent, and its id is kept.", least=100
        ),
    ] = 9_000
    keeper_lease_ms: Annotated[
        int, ConfigDef("How long a keeper that went silent keeps others from acting.", least=100)
    ] = 10_000
    subscription_linger_ms: Annotated[
        int, ConfigDef("How long a worker listens for appends to a partition that nobody waits on any more.")
    ] = 30_000

    def __repr__(self) -> str:
        """Name what differs from its default, without secrets: a settings object may end up in a log line."""
        changed = [row for row in rows() if row.of(self) != row.default]
        return f"Settings({', '.join(f'{row.attribute}={row.shown(row.of(self))!r}' for row in changed)})"


def _row(attribute: str, hint: object, default: Value) -> ConfigKey:
    of, about = get_args(hint)
    choices = get_args(of) if get_origin(of) is Literal else ()
    return ConfigKey(attribute.replace("_", "."), attribute, str if choices else of, default, choices, about)


@cache
def rows() -> tuple[ConfigKey, ...]:
    """Return the table, in the order of its declaration."""
    hints = get_type_hints(Settings, include_extras=True)
    fields = msgspec.structs.fields(Settings)
    return tuple(_row(field.name, hints[field.name], field.default) for field in fields)
