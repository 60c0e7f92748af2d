"""The configs of a broker as clients know them: every setting, and configs of Kafka that have no effect here."""

from __future__ import annotations

import sys

from korvet import FORMAT, __version__
from korvet.config.definition import INT32_MAX, INT64_MAX, ConfigDef, Value
from korvet.config.settings import SETTINGS
from korvet.protocol.types import ConfigType


def _row(
    name: str,
    doc: str,
    default: Value,
    least: int = 0,
    most: float = INT32_MAX,
    choices: tuple[str, ...] = (),
) -> ConfigDef:
    types = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, str: ConfigType.LIST}
    numeric = ConfigType.LONG if most > INT32_MAX else ConfigType.INT
    return ConfigDef(
        f"{doc} Has no effect here.",
        least,
        most,
        name=name,
        default=default,
        type=types.get(type(default), numeric),
        choices=choices,
        dynamic=True,
        reload=False,
    )


_MOVED = "Bytes a second that replicas move in Kafka while partitions are reassigned."

ONLY_IF_SET = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's tools set and delete these while partitions move: they are described only while they are set."""

WITHOUT_EFFECT = {
    row.name: row
    for row in (
        *(_row(name, _MOVED, INT64_MAX, 0, INT64_MAX) for name in sorted(ONLY_IF_SET)),
        _row("background.threads", "Threads of Kafka for tasks in the background.", 10, 1),
        _row(
            "compression.gzip.level",
            "Kafka's effort with gzip.",
            -1,
            -1,
            choices=("-1", *map(str, range(1, 10))),
        ),
        _row("compression.lz4.level", "Kafka's effort with lz4.", 9, 1, 17),
        _row("compression.zstd.level", "Kafka's effort with zstd.", 3, -131_072, 22),
        _row("log.cleaner.io.buffer.load.factor", "How full Kafka's buffer for compaction gets.", 0.9, 0, 1),
        _row("log.cleaner.io.buffer.size", "Bytes of Kafka's buffers for compaction.", 524_288),
        _row(
            "log.cleaner.io.max.bytes.per.second",
            "Bytes a second that Kafka's compaction reads and writes.",
            sys.float_info.max,
            0,
            sys.float_info.max,
        ),
        _row("log.cleaner.threads", "Threads of Kafka for compaction.", 1, 1),
        _row(
            "log.flush.interval.messages",
            "Records after which Kafka writes its log to disk.",
            INT64_MAX,
            1,
            INT64_MAX,
        ),
        _row(
            "log.flush.interval.ms", "Time after which Kafka writes its log to disk.", INT64_MAX, 0, INT64_MAX
        ),
        _row("log.index.interval.bytes", "Bytes between two rows of Kafka's index.", 4_096),
        _row("log.index.size.max.bytes", "Size of the files of Kafka's index.", 10_485_760, 4),
        _row(
            "log.preallocate", "Whether Kafka allocates the whole file of a segment at once.", default=False
        ),
        _row("log.roll.jitter.ms", "How far Kafka spreads the ages of segments.", 0, 0, INT64_MAX),
        _row("log.segment.bytes", "Size of the files of Kafka's log.", 1_073_741_824, 1_048_576),
        _row(
            "log.segment.delete.delay.ms", "How long Kafka keeps files of deleted logs.", 60_000, 0, INT64_MAX
        ),
        _row("metric.reporters", "Java classes that get Kafka's metrics.", ""),
        _row("num.io.threads", "Threads of Kafka that process requests.", 8, 1),
        _row("num.network.threads", "Threads of Kafka that serve connections.", 3, 1),
        _row("num.recovery.threads.per.data.dir", "Threads of Kafka that read logs at its start.", 2, 1),
        _row("num.replica.fetchers", "Threads of Kafka that copy replicas from another broker.", 1, 1),
        *(
            _row(f"remote.log.{name}", "A limit of Kafka's remote tier.", default, 1, most)
            for name, default, most in (
                ("index.file.cache.total.size.bytes", 1_073_741_824, INT64_MAX),
                ("manager.copier.thread.pool.size", 10, INT32_MAX),
                ("manager.copy.max.bytes.per.second", INT64_MAX, INT64_MAX),
                ("manager.expiration.thread.pool.size", 10, INT32_MAX),
                ("manager.fetch.max.bytes.per.second", INT64_MAX, INT64_MAX),
                ("manager.follower.thread.pool.size", 2, INT32_MAX),
                ("reader.threads", 10, INT32_MAX),
            )
        ),
        _row(
            "transaction.partition.verification.enable",
            "Whether Kafka verifies that a transaction has a partition before it appends to that.",
            default=True,
        ),
        _row(
            "unclean.leader.election.enable",
            "Whether a replica of Kafka's that lacks records may lead.",
            default=False,
        ),
    )
}
"""Settings that Kafka takes while it runs, and that mean nothing on Redis: they are accepted, kept and described."""

OTHER_UNITS = {
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms", str(INT64_MAX)),
    "log.retention.ms": ("log.retention.hours", "168"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours", "0"),
    "log.roll.ms": ("log.roll.hours", "168"),
}
"""Settings without a default in Kafka, each with the name and value of its default in other units."""

_PROTOCOL_VERSION = ConfigDef(
    "Version of Kafka whose protocol brokers speak: the highest level of `metadata.version`. Cannot be set.",
    name="inter.broker.protocol.version",
    default="4.2-IV1",
)
"""Of Kafka before 4.0: tools conclude from it what they may ask, as kafka-ui, which without it uses AlterConfigs."""

_BUILD = (
    ConfigDef(
        "Version of Korvet that this broker runs. Cannot be set.", name="korvet.version", default=__version__
    ),
    ConfigDef(
        "Highest format of data that this broker reads and writes: the highest level of the feature"
        " `korvet.format`. Cannot be set.",
        name="korvet.format",
        default=str(FORMAT),
    ),
)
"""What `korvet cluster describe` asks each broker."""

BROKER_CONFIGS = dict(
    sorted(
        (SETTINGS | WITHOUT_EFFECT | {config.name: config for config in (_PROTOCOL_VERSION, *_BUILD)}).items()
    )
)
"""All that a broker describes to clients, by name."""

DYNAMIC_CONFIGS = {name: item for name, item in BROKER_CONFIGS.items() if item.dynamic}
"""Those that clients may alter while brokers run."""
