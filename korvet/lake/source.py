"""Where topics are: the Redis of one namespace, its topics with a remote tier, and the lake that has their tables.

A source is plain values and goes to any process, which opens connections of its own: they survive neither a fork nor
the way to another machine.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from korvet import logs
from korvet.cluster.dynamic_settings import BrokerConfigStore
from korvet.cluster.pipelines import PipelineStore
from korvet.config.dynamic import DEFAULT
from korvet.config.settings import Settings
from korvet.config.values import key_values, listed
from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.data_format import check_redis
from korvet.lake.table import Lake, LakeTopic
from korvet.log import high_watermark
from korvet.log.index import IndexStore
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.log.replication import BlockingReplicas
from korvet.log.store import LogStore
from korvet.log.types import Bounds, LogLimits
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.entry_ids import DENSE
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition, TopicRow

if TYPE_CHECKING:
    from korvet.lake.iceberg import IcebergTables

_log = logs.Log(__name__)

_TIMESTAMP_TYPE = "message.timestamp.type"
_MIN_INSYNC = "min.insync.replicas"
_BITS_DEFAULT = 10
_RETENTION = ("log.retention.ms", "log.retention.bytes", "log.cleanup.policy")


class _OfPartition(Protocol):
    @property
    def partition(self) -> Partition: ...


T = TypeVar("T")
Work = TypeVar("Work", bound=_OfPartition)


class SourceTopic(NamedTuple):
    """A topic to archive: its id as the text of 22 characters, its partitions in order.

    `log_append_time`: timestamps of records are those of their appends. `by_date`: so a table is partitioned that is
    created for it. `copied`: archiving goes on (remote.log.copy.disable).
    """

    name: str
    id: str
    partitions: tuple[Partition, ...]
    log_append_time: bool
    by_date: bool = False
    copied: bool = True

    @property
    def of(self) -> LakeTopic:
        """The topic as the lake knows it."""
        return LakeTopic(self.name, self.id)


class RetentionLimits(NamedTuple):
    """How long, in ms, and how much, in bytes, a log keeps in Redis and lake together, -1 without a limit.

    Without `delete`, its cleanup.policy, it keeps everything.
    """

    ms: int = -1
    bytes: int = -1
    delete: bool = True


class LakeSource(msgspec.Struct, frozen=True, kw_only=True):
    """A Redis with its namespace, a lake, and the settings that logs are read by; times in ms, sizes in bytes.

    `iceberg` are the properties of a catalog that has the tables too; without any there is none.
    """

    redis_url: str
    lake: Lake = Lake()
    namespace: str = "korvet"
    timeout_ms: int = 5_000
    connect_timeout_ms: int = 2_000
    decompressed_bytes_max: int = 64 * 1024 * 1024
    timestamp_type: str = "CreateTime"
    retention: RetentionLimits = RetentionLimits()
    replicas: int = 0
    min_insync_replicas: int = 1
    iceberg: dict[str, str] = {}

    def __repr__(self) -> str:
        """Name namespace and lake; the URL of Redis may have a password."""
        return f"LakeSource({self.namespace!r}, {self.lake!r})"

    @classmethod
    def of(cls, settings: Settings, redis_url: str) -> LakeSource:
        """Return the source of a broker with these settings, at `redis_url`."""
        return cls(
            redis_url=redis_url,
            lake=Lake.of(settings.lake_path, settings.lake_storage_options),
            namespace=settings.namespace,
            timeout_ms=settings.redis_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
            decompressed_bytes_max=settings.record_decompressed_max_bytes,
            timestamp_type=settings.log_message_timestamp_type,
            retention=RetentionLimits(
                settings.log_retention_ms,
                settings.log_retention_bytes,
                "delete" in listed(settings.log_cleanup_policy),
            ),
            replicas=settings.replicas,
            min_insync_replicas=settings.min_insync_replicas,
            iceberg=key_values(settings.lake_iceberg_catalog),
        )

    def iceberg_tables(self) -> IcebergTables | None:
        """Return the lake's tables in an Iceberg catalog; None if it has none."""
        if not self.iceberg:
            return None
        from korvet.lake.iceberg import IcebergTables  # noqa: PLC0415 - an extra of its own

        return IcebergTables(self.lake, self.namespace, self.iceberg)

    @contextlib.contextmanager
    def opened(self) -> Iterator[LakeStores]:
        """Give the stores; connections are opened by the first command, and closed after the block.

        Raises ConfigError for a malformed `redis_url`.
        """
        opened: list[Redis] = []

        def connection() -> Redis:
            made = blocking_redis(
                self.redis_url,
                timeout_ms=self.timeout_ms,
                connect_timeout_ms=self.connect_timeout_ms,
            )
            opened.append(made)
            return made

        redis = connection()
        keys = Keys(self.namespace)
        logs = LogStore(
            redis,
            redis,
            keys,
            limits=LogLimits(self.decompressed_bytes_max),
            replicas=BlockingReplicas(
                connection, redis, keys, replicas=self.replicas, timeout_ms=self.timeout_ms
            ),
        )
        try:
            yield LakeStores(
                source=self,
                redis=redis,
                topics=TopicStore(redis, keys),
                configs=BrokerConfigStore(redis, keys),
                logs=logs,
                indexes=IndexStore(redis),
                remote=RemoteOffsetStore(redis),
                pipelines=PipelineStore(redis, keys),
            )
        finally:
            for item in opened:
                item.close()


class LakeStores(NamedTuple):
    """The stores in Redis, over one connection to each node that is used, and the lake beside them."""

    source: LakeSource
    redis: Redis
    topics: TopicStore
    configs: BrokerConfigStore
    logs: LogStore
    indexes: IndexStore
    remote: RemoteOffsetStore
    pipelines: PipelineStore

    @property
    def lake(self) -> Lake:
        return self.source.lake

    def writable_lake(self) -> Lake:
        """Return the lake, to write what Redis allows; raises KafkaError and StorageUnavailableError."""
        return self.lake._replace(level=check_redis(self.redis, Keys(self.source.namespace)))

    def archives(self, tables: Iterable[LakeTopic], live: Collection[LakeTopic]) -> list[LakeTopic]:
        """Return those of `tables` that are topics' tables: of live topics, or written by Korvet and by no pipeline.

        One that cannot be read is none. Raises KafkaError and StorageUnavailableError.
        """
        written = {_same_store(uri) for pipeline in self.pipelines.read() for uri in pipeline.tables}
        return [table for table in tables if table in live or self._is_archive(table, written)]

    def _is_archive(self, topic: LakeTopic, written: Collection[str]) -> bool:
        if _same_store(self.lake.uri(topic)) in written:
            return False
        try:
            return self.lake.is_archive(topic)
        except LakeError as error:
            _log.warning("a table is left alone, because it cannot be read", error=error)
            return False

    def by_node(self, works: Iterable[Work]) -> list[list[Work]]:
        """Return works in their order, those together of which one node of Redis has the partitions.

        What no node is known to have is together, too.
        """
        groups: dict[str, list[Work]] = {}
        for work in works:
            try:
                node = self.redis.node_of(work.partition.stream).name
            except StorageUnavailableError:
                node = ""
            groups.setdefault(node, []).append(work)
        return list(groups.values())

    def remote_topics(self, names: Collection[str] = (), *, ids: Collection[str] = ()) -> list[SourceTopic]:
        """Return the topics with a remote tier by name, of these names if any are given.

        `ids` are those of topics that had one and have a table: they count too. Raises KafkaError and
        StorageUnavailableError; ValueError, which says why, for a name that is none of them.
        """
        live = {row.name: row for row in self._rows() if row.state == "live"}
        for name in names:
            if name not in live:
                raise ValueError(f"there is no topic {name}")
            if not (has_remote_tier(live[name]) or live[name].id in ids):
                raise ValueError(f"topic {name} has no remote tier: remote.storage.enable is not true")
        return self._described(
            row
            for name, row in live.items()
            if (has_remote_tier(row) or row.id in ids) and (not names or name in names)
        )

    def _described(self, rows: Iterable[TopicRow]) -> list[SourceTopic]:
        [altered] = self.configs.load(DEFAULT)
        default = altered.get(f"log.{_TIMESTAMP_TYPE}", self.source.timestamp_type)
        insync = altered.get(_MIN_INSYNC, str(self.source.min_insync_replicas))
        return [_topic(row, self.logs, default, insync) for row in sorted(rows, key=lambda item: item.name)]

    def _rows(self) -> Collection[TopicRow]:
        """Return the rows of all topics; raises KafkaError, also for data that a later version has written."""
        check_redis(self.redis, Keys(self.source.namespace))
        return self.topics.load().rows.values()

    def topic(self, name: str) -> SourceTopic:
        """Return a topic, with a remote tier or without.

        Raises KafkaError and StorageUnavailableError; ValueError if there is none of that name.
        """
        [topic] = self.named([name])
        return topic

    def named(self, names: Collection[str]) -> list[SourceTopic]:
        """Return topics, with a remote tier or without; raises as `topic`."""
        ids = [row.id for row in self._rows() if row.name in names]
        return self.remote_topics(names, ids=ids) if names else []

    def matching(self, pattern: str) -> list[SourceTopic]:
        """Return the topics whose whole names match; raises KafkaError and StorageUnavailableError."""
        rows = self._rows()
        return self._described(row for row in rows if row.state == "live" and re.fullmatch(pattern, row.name))

    def retentions(self) -> dict[str, RetentionLimits]:
        """Return the retention of each topic, by its id, without those whose configs cannot be read.

        Raises KafkaError and StorageUnavailableError.
        """
        [altered] = self.configs.load(DEFAULT)
        default = self.source.retention
        limits = {}
        for row in self._rows():
            # A topic's own config, else the dynamic default of brokers, else what they were started with.
            own = {f"log.{name}": text for name, text in row.configs.items()}
            ms, size, policies = (own.get(name, altered.get(name)) for name in _RETENTION)
            try:
                limits[row.id] = RetentionLimits(
                    default.ms if ms is None else int(ms),
                    default.bytes if size is None else int(size),
                    default.delete if policies is None else "delete" in listed(policies),
                )
            except ValueError as error:
                _log.error("a topic's retention cannot be read", topic=row.name, reason=error)
        return limits

    def held_bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return where logs begin and end as far as replicas have them; an error if that is not known."""
        return [
            high_watermark.unknown()
            if isinstance(visible_bound, Bounds) and visible_bound.high_watermark < 0
            else visible_bound
            for visible_bound in self.logs.visible_bounds(partitions)
        ]

    def bounds(self, partition: Partition) -> Bounds:
        """Return where a log begins and ends now; raises KafkaError and StorageUnavailableError."""
        return answered(*self.logs.bounds([partition]))


def answered(answer: T | KafkaError) -> T:
    """Return what Redis has answered for one partition; raises it if it is an error."""
    if isinstance(answer, KafkaError):
        raise answer
    return answer


def has_remote_tier(row: TopicRow) -> bool:
    """Return whether a topic is archived."""
    return row.configs.get("remote.storage.enable") == "true"


def _topic(row: TopicRow, logs: LogStore, timestamp_type: str, insync: str) -> SourceTopic:
    # A topic keeps both from its creation, whatever a broker's settings say now.
    dense = row.configs.get("offset.encoding") == "dense"
    bits = DENSE if dense else int(row.configs.get("offset.sequence.bits", _BITS_DEFAULT))
    form: Literal["record", "batch"] = "batch" if row.configs.get("storage.format") == "batch" else "record"
    replicas = int(row.configs.get(_MIN_INSYNC, insync)) - 1
    partitions = (
        logs.partition(row.name, at, row.id, bits, form, replicas, row.tag(at))
        for at in range(row.partitions)
    )
    kind = row.configs.get(_TIMESTAMP_TYPE, timestamp_type)
    by_date = row.configs.get("lake.partitioning") == "date"
    copied = row.configs.get("remote.log.copy.disable") != "true"
    return SourceTopic(row.name, row.id, tuple(partitions), kind == "LogAppendTime", by_date, copied)


def _same_store(uri: str) -> str:
    """Return a path without what differs between two names of one: Hadoop's client of S3 calls it s3a."""
    return re.sub(r"^s3a?://", "s3://", uri.rstrip("/"))
