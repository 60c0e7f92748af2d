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

    listen: str = _fixed("127.0.0.1:9092", form=values.listen_address)
    advertised: str = _setting("", form=optional(values.advertised_address))
    listeners: str = _fixed("", form=optional(listeners_to_bind), type=ConfigType.LIST)
    advertised_listeners: str = _setting("", form=optional(advertised_listeners), type=ConfigType.LIST)
    listener_security_protocol_map: str = _setting(PROTOCOL_MAP, form=protocol_map, type=ConfigType.LIST)
    overrides: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """What single listeners have otherwise, by name in upper case and by attribute: see `for_listener`."""

    ssl_keystore_type: Literal["PEM"] = _of_listener("PEM")
    ssl_keystore_location: str = _of_listener("", form=optional(values.path))
    ssl_keystore_certificate_chain: str = _of_listener("", form=values.pem, secret=True)
    ssl_keystore_key: str = _of_listener("", form=values.pem, secret=True)
    ssl_key_password: str = _of_listener("", secret=True)
    ssl_truststore_type: Literal["PEM"] = _of_listener("PEM")
    ssl_truststore_location: str = _of_listener("", form=optional(values.path))
    ssl_truststore_certificates: str = _of_listener("", form=values.pem, secret=True)
    ssl_client_auth: Literal["none", "requested", "required"] = _of_listener("none")
    ssl_enabled_protocols: str = _of_listener(
        "TLSv1.2,TLSv1.3", choices=("TLSv1.2", "TLSv1.3"), type=ConfigType.LIST
    )
    ssl_protocol: Literal["TLSv1.2", "TLSv1.3"] = _of_listener("TLSv1.3")
    ssl_cipher_suites: str = _of_listener("", type=ConfigType.LIST)
    ssl_principal_mapping_rules: str = _of_listener("DEFAULT")
    authorizer_class_name: str = _setting("", form=optional(values.authorizer))
    super_users: str = _setting("", form=optional(values.principals))
    allow_everyone_if_no_acl_found: bool = _setting(False)
    authorizer_cache_max_age_ms: int = _setting(60_000, 10_000, INT64_MAX)

    sasl_enabled_mechanisms: str = _of_listener(
        "SCRAM-SHA-256,SCRAM-SHA-512", choices=SASL_MECHANISMS, type=ConfigType.LIST
    )
    sasl_plain_users_file: str = _of_listener("", form=optional(values.path))
    sasl_server_max_receive_size: int = _of_listener(524_288, least=1024)
    connections_max_reauth_ms: int = _of_mechanism(0, most=INT64_MAX)
    connection_failed_authentication_delay_ms: int = _setting(100)

    sasl_oauthbearer_jwks_endpoint_url: str = _of_mechanism("", form=optional(values.jwks_url))
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _of_mechanism(3_600_000, 1, INT64_MAX)
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = _of_mechanism(100, 1)
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = _of_mechanism(10_000, 1)
    sasl_oauthbearer_expected_audience: str = _of_mechanism("", type=ConfigType.LIST)
    sasl_oauthbearer_expected_issuer: str = _of_mechanism("")
    sasl_oauthbearer_clock_skew_seconds: int = _of_mechanism(30)
    sasl_oauthbearer_sub_claim_name: str = _of_mechanism("sub")
    sasl_oauthbearer_scope_claim_name: str = _of_mechanism("scope")

    ops_listen: str = _fixed("127.0.0.1:9093", form=optional(values.listen_address))
    ops_allowed_hosts: str = _setting("", form=optional(values.host_names))
    ops_ssl_keystore_location: str = _setting("", form=optional(values.path))
    ops_ssl_key_password: str = _setting("", secret=True)
    console_enable: bool = _setting(True)
    console_token_file: str = _setting("", form=optional(values.path))
    console_client_config: str = _setting("", form=optional(values.path))
    console_read_token_file: str = _setting("", form=optional(values.path))
    redis_url: str = _fixed("", form=optional(values.redis_url), secret=True)
    redis_password_file: str = _fixed("", form=optional(values.path))
    data_dir: str = _fixed("./korvet-data", form=values.path)
    workers: int = _fixed(0, 0, 1024)
    broker_id: int = _fixed(0, least=-1)
    cluster_id: str = _fixed("", form=optional(values.name))
    namespace: str = _fixed("korvet", form=values.name)

    log_format: Literal["text", "json"] = _setting("text")
    log_level: Literal["debug", "info", "warning", "error"] = _dynamic("info")
    log_levels: str = _dynamic("", form=values.log_levels, type=ConfigType.LIST)
    drain_timeout_ms: int = _setting(10_000)
    drain_delay_ms: int = _setting(0)

    redis_timeout_ms: int = _setting(5_000, least=1)
    redis_connect_timeout_ms: int = _setting(2_000, least=1)
    redis_read_max_bytes: int = _fixed(16_777_216, 1_048_576, INT64_MAX)
    replicas: int = _setting(0, 0, 64)
    min_insync_replicas: int = _dynamic(1, 1, 65)
    lake_path: str = _fixed("", form=optional(values.archive))
    lake_storage_options: str = _fixed("", form=values.storage_options, secret=True)
    lake_iceberg_catalog: str = _fixed("", form=values.storage_options, secret=True)
    lake_interval_ms: int = _setting(10_000)
    lake_upkeep_interval_ms: int = _setting(300_000)
    lake_master: str = _setting("local[2,4]", form=values.spark_master)
    remote_fetch_max_wait_ms: int = _dynamic(500)
    remote_list_offsets_request_timeout_ms: int = _dynamic(30_000, least=1)
    embedded_maxmemory_bytes: int = _fixed(0, 0, INT64_MAX)
    embedded_disk_max_bytes: int = _setting(0, 0, INT64_MAX)
    memory_throttle_percent: int = _dynamic(85, 1, 100)
    memory_refuse_percent: int = _dynamic(95, 1, 100)
    throttle_max_ms: int = _dynamic(1_000, 0, 10_000)

    auto_create_topics_enable: bool = _setting(True)
    num_partitions: int = _setting(1, 1, 100_000)
    default_replication_factor: int = _setting(1, 1, 32_767)
    delete_topic_enable: bool = _setting(True)
    topic_reserved_names: str = _setting(
        "__cluster_metadata,__consumer_offsets,__share_group_state,__transaction_state",
        form=values.name_patterns,
        type=ConfigType.LIST,
    )

    message_max_bytes: int = _dynamic(1_048_588)
    message_max_records: int = _dynamic(30_000, least=1)
    socket_request_max_bytes: int = _setting(104_857_600, least=1024)
    request_control_max_bytes: int = _setting(16_777_216, least=1024)
    queued_max_request_bytes: int = _setting(268_435_456, 1024, INT64_MAX)
    record_decompressed_max_bytes: int = _setting(16_777_216, least=1024)
    fetch_max_bytes: int = _setting(57_671_680, least=1024)
    max_incremental_fetch_session_cache_slots: int = _fixed(1_000)
    connections_max_idle_ms: int = _setting(600_000, -1, INT64_MAX)
    max_connections: int = _dynamic(INT32_MAX, least=1, per_listener=True)
    max_connections_per_ip: int = _dynamic(INT32_MAX)
    max_connections_per_ip_overrides: str = _dynamic("", form=values.connection_limits, type=ConfigType.LIST)
    max_connection_creation_rate: int = _dynamic(INT32_MAX, per_listener=True)
    quota_window_num: int = _fixed(11, 1, 1_000)
    quota_window_size_seconds: int = _fixed(1, 1, 3_600)
    controller_quota_window_num: int = _fixed(11, 1, 1_000)
    controller_quota_window_size_seconds: int = _fixed(1, 1, 3_600)
    connection_receive_timeout_ms: int = _setting(30_000, least=1)

    log_retention_ms: int = _dynamic(7 * _DAY_MS, INT64_MIN, INT64_MAX)
    log_retention_bytes: int = _dynamic(-1, INT64_MIN, INT64_MAX)
    log_retention_check_interval_ms: int = _setting(300_000, 1, INT64_MAX)
    log_local_retention_ms: int = _dynamic(-2, -2, INT64_MAX)
    log_local_retention_bytes: int = _dynamic(-2, -2, INT64_MAX)
    log_cleanup_policy: str = _dynamic("delete", choices=("compact", "delete"), type=ConfigType.LIST)
    log_roll_ms: int = _dynamic(7 * _DAY_MS, 1, INT64_MAX)
    log_cleaner_enable: bool = _setting(True)
    log_cleaner_backoff_ms: int = _dynamic(15_000, 1, INT64_MAX)
    log_cleaner_dedupe_buffer_size: int = _dynamic(134_217_728, 65_536, INT64_MAX)
    log_cleaner_delete_retention_ms: int = _dynamic(_DAY_MS, 0, INT64_MAX)
    log_cleaner_min_cleanable_ratio: float = _dynamic(0.5, 0, 1)
    log_cleaner_min_compaction_lag_ms: int = _dynamic(0, 0, INT64_MAX)
    log_cleaner_max_compaction_lag_ms: int = _dynamic(INT64_MAX, 1, INT64_MAX)
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = _dynamic("CreateTime")
    log_message_timestamp_before_max_ms: int = _dynamic(INT64_MAX, 0, INT64_MAX)
    log_message_timestamp_after_max_ms: int = _dynamic(3_600_000, 0, INT64_MAX)
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = _dynamic(
        "producer"
    )
    storage_format: Literal["record", "batch"] = _dynamic("record")
    storage_format_topics: str = _dynamic("", form=values.format_patterns, type=ConfigType.LIST)
    redis_placement: Literal["name", "even"] = _dynamic("name")
    storage_compression: Literal["none", "lz4", "zstd"] = _dynamic("lz4")
    storage_compression_min_bytes: int = _dynamic(1024)
    offset_encoding: Literal["time", "dense"] = _dynamic("time")
    offset_sequence_bits: int = _dynamic(10, 8, 12)

    producer_id_expiration_ms: int = _dynamic(_DAY_MS, 1)
    transaction_max_timeout_ms: int = _setting(900_000, least=1)
    transactional_id_expiration_ms: int = _setting(7 * _DAY_MS, least=1)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(10_000, least=1)
    group_initial_rebalance_delay_ms: int = _setting(3_000)
    group_min_session_timeout_ms: int = _setting(6_000, 1)
    group_max_session_timeout_ms: int = _setting(1_800_000, 1)
    group_max_size: int = _setting(INT32_MAX, least=1)
    group_consumer_session_timeout_ms: int = _setting(45_000, 1)
    group_consumer_min_session_timeout_ms: int = _setting(45_000, 1)
    group_consumer_max_session_timeout_ms: int = _setting(60_000, 1)
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_consumer_min_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_consumer_max_heartbeat_interval_ms: int = _setting(15_000, 1)
    group_consumer_max_size: int = _setting(INT32_MAX, 1)
    group_consumer_assignors: str = _setting(
        "uniform,range", choices=("uniform", "range"), type=ConfigType.LIST
    )
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = _setting(
        "bidirectional"
    )
    group_consumer_regex_refresh_interval_ms: int = _setting(600_000, 10_000)
    group_share_session_timeout_ms: int = _setting(45_000, 1)
    group_share_min_session_timeout_ms: int = _setting(45_000, 1)
    group_share_max_session_timeout_ms: int = _setting(60_000, 1)
    group_share_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_share_min_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_share_max_heartbeat_interval_ms: int = _setting(15_000, 1)
    group_share_max_size: int = _setting(200, 1, 1_000)
    group_share_assignors: str = _setting("simple", choices=("simple",), type=ConfigType.LIST)
    group_share_record_lock_duration_ms: int = _setting(30_000, 1_000, 3_600_000)
    group_share_min_record_lock_duration_ms: int = _setting(15_000, 1_000, 30_000)
    group_share_max_record_lock_duration_ms: int = _setting(60_000, 30_000, 3_600_000)
    group_share_delivery_count_limit: int = _setting(5, 2, 10)
    group_share_partition_max_record_locks: int = _setting(2_000, 100, 2_000)
    group_share_max_share_sessions: int = _setting(2_000, 1)
    group_streams_session_timeout_ms: int = _setting(45_000, 1)
    group_streams_min_session_timeout_ms: int = _setting(45_000, 1)
    group_streams_max_session_timeout_ms: int = _setting(60_000, 1)
    group_streams_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_streams_min_heartbeat_interval_ms: int = _setting(5_000, 1)
    group_streams_max_heartbeat_interval_ms: int = _setting(15_000, 1)
    group_streams_max_size: int = _setting(INT32_MAX, 1)
    group_streams_num_standby_replicas: int = _setting(0)
    group_streams_max_standby_replicas: int = _setting(2)
    group_streams_initial_rebalance_delay_ms: int = _setting(3_000)
    offsets_retention_minutes: int = _setting(10_080, 1)
    offsets_retention_check_interval_ms: int = _setting(600_000, 1, INT64_MAX)
    offset_metadata_max_bytes: int = _setting(4_096)
    group_mirror: bool = _setting(True)
    log_figures_interval_ms: int = _setting(15_000, least=100)
    metrics_partitions_max: int = _setting(1_000)
    broker_lease_ms: int = _setting(9_000, least=100)
    keeper_lease_ms: int = _setting(10_000, least=100)
    subscription_linger_ms: int = _setting(30_000)

    def __repr__(self) -> str:
        """Name what differs from its default, without secrets: a settings object may end up in a log line."""
        changed = [item for item in SETTINGS.values() if item.value(self) != item.default]
        shown = [f"{item.attribute}={item.format(item.value(self))!r}" for item in changed]
        shown += [f"{item.name}={item.format(value)!r}" for item, value in self.of_single_listeners()]
        return f"Settings({', '.join(shown)})"

    def security_protocol(self, listener: str) -> SecurityProtocol:
        return parse_protocol_map(self.listener_security_protocol_map)[listener]

    @property
    def replicas_wanted(self) -> int:
        """How many replicas Redis must have by `replicas` and `min.insync.replicas`."""
        return max(self.replicas, self.min_insync_replicas - 1)

    def for_listener(self, listener: str) -> Settings:
        given: Mapping[str, Any] = self.overrides.get(listener, {})
        return replace(self, **given) if given else self

    def of_single_listeners(self) -> list[tuple[ConfigDef, Value]]:
        """Return what single listeners have otherwise: `listener.name.<name>.<setting>` and its value."""
        by_attribute = {item.attribute: item for item in SETTINGS.values()}
        return [
            (msgspec.structs.replace(item, name=f"listener.name.{listener.lower()}.{item.name}"), value)
            for listener, given in self.overrides.items()
            for item, value in ((by_attribute[attribute], value) for attribute, value in given.items())
        ]


_HINTS = get_type_hints(Settings)
SETTINGS = {
    item.name: item
    for item in (definition_of(field, _HINTS[field.name]) for field in fields(Settings) if field.metadata)
}
"""The definitions by name, in the order of their declaration."""
