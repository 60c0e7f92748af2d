"""The options of the data source `korvet`, for reading and for writing.

Names and forms are those of Spark's Kafka source and sink if they have the option, so that a query changes its format
and little else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import urlsplit

import msgspec

from korvet.admin.security import FAMILIES, ClientSecurity, from_configs
from korvet.admin.transactions import TIMEOUT_MS_MAX
from korvet.config.settings import Settings
from korvet.config.sources import with_password
from korvet.lake.scan import Tiers
from korvet.lake.source import LakeSource
from korvet.lake.table import AsOf, Lake
from korvet.protocol.records.compression import Codec
from korvet.redis.url import running_url

Edge: TypeAlias = Literal["earliest", "latest"]
EARLIEST, LATEST = -2, -1
"""As offsets of one partition."""

_TOPICS = ("topic", "subscribe", "subscribePattern", "assign")
"""Ways to name what is read: one of them has to be given."""

_NAMES = (
    *("redis.url", "redis.password.file", "data.dir", "namespace", *_TOPICS),
    *("lake", "lake.storage.options", "tiers", "replicas", "min.insync.replicas"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingPosition", "endingPosition"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("versionAsOf", "timestampAsOf", "maxRecordsPerPartition", "minPartitions", "failOnDataLoss"),
    *("pushFilters", "maxRecordsPerTrigger", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
    "maxTriggerDelay",
)

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TRIGGER_DELAY = "15m"
"""As Spark's Kafka source has it."""


class TopicChoice(msgspec.Struct, frozen=True):
    """What is read: topics by their names, or all that match a pattern; of each all partitions, or some."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None


class ReadEdge(msgspec.Struct, frozen=True):
    """Where reading starts or ends: by timestamp (ms), else by offset, else an end of all logs.

    `timestamp` is that of all partitions; `timestamps` and `offsets` are by topic and partition.
    """

    edge: Edge
    offsets: dict[str, dict[int, int]] | None = None
    timestamp: int | None = None
    timestamps: dict[str, dict[int, int]] | None = None


class TriggerLimits(msgspec.Struct, frozen=True):
    """Records of a batch of a stream: at most, and at least, unless the last one was `delay_s` ago."""

    records_max: int | None = None
    records_min: int | None = None
    delay_s: float = 900


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that a query reads, and how much of them at once.

    `after_end`: a partition without a record from a starting timestamp on is read from its end; else that is an error.
    `position`: where a stream begins in spite of `starting`, as text of a checkpoint.
    `last_position`: where one ends that reads all there is, as the same.
    `as_of`: the tables as they were, and nothing of Redis.
    `push_filters`: filters of the query bound what is read, for a DataFrame that is used once.
    """

    source: LakeSource
    topics: TopicChoice
    starting: ReadEdge | None
    position: str | None
    last_position: str | None
    ending: ReadEdge
    after_end: bool
    records_per_partition: int | None
    partitions_min: int
    trigger: TriggerLimits
    fail_on_data_loss: bool
    as_of: AsOf | None
    tiers: Tiers
    push_filters: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse options for reading; raises ValueError for wrong ones, ConfigError for `data.dir`.

    Spark gives their names in any case, and may add its own.
    """
    options = _known(given, _NAMES, {"path"}, "known")
    topics = _topics(options)
    starting = _read_edge(options, "starting")
    ending = _read_edge(options, "ending")
    if ending is not None and ending.edge == "earliest":
        raise ValueError("endingOffsets cannot be earliest")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ValueError(f"startingOffsetsByTimestampStrategy: {strategy!r} is neither error nor latest")
    return ReadOptions(
        source=LakeSource(
            redis_url=_redis_url(options),
            lake=Lake.of(options.get("lake", ""), options.get("lake.storage.options", "")),
            namespace=options.get("namespace", "korvet"),
            replicas=_count(options, "replicas") or 0,
            min_insync_replicas=_count(options, "min.insync.replicas") or 1,
        ),
        topics=topics,
        starting=starting,
        position=options.get("startingposition"),
        last_position=options.get("endingposition"),
        ending=ending or ReadEdge("latest"),
        after_end=strategy == "latest",
        records_per_partition=_count(options, "maxRecordsPerPartition"),
        partitions_min=_count(options, "minPartitions") or 0,
        trigger=_trigger(options),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        as_of=_as_of(options),
        tiers=_tiers(options),
        push_filters=_truth(options, "pushFilters", default=False),
    )


def options_of(source: LakeSource) -> dict[str, str]:
    """Return a source as options for reading, without replicas."""
    return {
        "redis.url": source.redis_url,
        "namespace": source.namespace,
        "lake": source.lake.path,
        "lake.storage.options": storage_text(source.lake),
    }


def storage_text(lake: Lake) -> str:
    """Return the options of an object store as an option has them."""
    return ",".join(map("=".join, (lake.storage_options or {}).items()))


def _tiers(options: Mapping[str, str]) -> Tiers:
    text = options.get("tiers", "both")
    if text not in get_args(Tiers):
        raise ValueError(f"tiers: {text!r} is none of {', '.join(get_args(Tiers))}")
    return cast("Tiers", text)


def _as_of(options: Mapping[str, str]) -> AsOf | None:
    version, time = options.get("versionasof"), options.get("timestampasof")
    if version is not None and time is not None:
        raise ValueError("versionAsOf and timestampAsOf exclude each other")
    if version is not None and not version.isdigit():
        raise ValueError(f"versionAsOf: {version!r} is no version of a table")
    if version is not None or time is None:
        return None if version is None else int(version)
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError as error:
        raise ValueError(f"timestampAsOf: {time!r} is no time as 2026-11-01 12:00:00") from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _topics(options: Mapping[str, str]) -> TopicChoice:
    given = [(name, text) for name in _TOPICS if (text := options.get(name.lower()))]
    if len(given) != 1:
        raise ValueError(f"one of the options {', '.join(_TOPICS)} is required, and no more")
    [(name, text)] = given
    match name:
        case "topic":
            return TopicChoice((text,))
        case "subscribe":
            names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
            if not names:
                raise ValueError(f"subscribe: {text!r} names no topic")
            return TopicChoice(names)
        case "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"subscribePattern: {text!r} is no regular expression: {error}") from error
            return TopicChoice(pattern=text)
    wrong = f'assign: {text!r} is not as {{"orders": [0, 1]}}'
    try:
        partitions = msgspec.json.decode(text, type=dict[str, tuple[int, ...]])
    except msgspec.DecodeError as error:
        raise ValueError(wrong) from error
    if not partitions or not all(partitions.values()):
        raise ValueError(wrong)
    return TopicChoice(tuple(partitions), partitions=partitions)


def _trigger(options: Mapping[str, str]) -> TriggerLimits:
    maxima = [_count(options, name) for name in ("maxRecordsPerTrigger", "maxOffsetsPerTrigger")]
    if None not in maxima:
        raise ValueError("maxRecordsPerTrigger and maxOffsetsPerTrigger exclude each other")
    records_max, records_min = maxima[0] or maxima[1], _count(options, "minOffsetsPerTrigger")
    if records_max is not None and records_min is not None and records_max < records_min:
        raise ValueError(f"minOffsetsPerTrigger {records_min} is more than the maximum of {records_max}")
    text = options.get("maxtriggerdelay", _TRIGGER_DELAY)
    parsed = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.strip().lower())
    if parsed is None or (parsed[2] or "ms") not in _UNITS_S:
        raise ValueError(f"maxTriggerDelay: {text!r} is no time as 15m; units are {', '.join(_UNITS_S)}")
    return TriggerLimits(records_max, records_min, int(parsed[1]) * _UNITS_S[parsed[2] or "ms"])


def _known(given: Mapping[str, str], names: Sequence[str], of_spark: set[str], known: str) -> dict[str, str]:
    """Return options by their names in lower case; raises ValueError for one that is unknown."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - {name.lower() for name in names} - of_spark)
    if unknown:
        raise ValueError(f"unknown option {unknown[0]}; {known} are {', '.join(names)}")
    return options


def _redis_url(options: Mapping[str, str]) -> str:
    """Return where the log is; a password is read here, and goes to Spark's workers with their tasks."""
    url, password_file = options.get("redis.url", ""), options.get("redis.password.file")
    return with_password(url, password_file) if password_file else url or _embedded(options)


def _embedded(options: Mapping[str, str]) -> str:
    directory = Path(options.get("data.dir") or Settings().data_dir).expanduser().absolute()
    url = running_url(directory)
    if url is None:
        raise ValueError(
            f"the option redis.url is required: no embedded server runs on {directory} (data.dir)"
        )
    return url


def _read_edge(options: Mapping[str, str], which: Literal["starting", "ending"]) -> ReadEdge | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    by_times = f"{by_offset}ByTimestamp"
    given = [name for name in (by_offset, by_time, by_times) if name.lower() in options]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other")
    if not given:
        return None
    [name], text = given, options[given[0].lower()]
    if name == by_time:
        if not text.isdigit():
            raise ValueError(f"{by_time}: {text!r} is no timestamp in milliseconds")
        return ReadEdge("latest", timestamp=int(text))
    if name == by_times:
        wrong = f'{name}: {text!r} is not as {{"orders": {{"0": 1700000000000}}}}, in milliseconds'
        return ReadEdge("latest", timestamps=_by_partition(text, 0, wrong))
    match text:
        case "earliest" | "latest":
            return ReadEdge(text)
    wrong = f'{name}: {text!r} is not earliest, latest or as {{"orders": {{"0": 23, "1": -1}}}}'
    return ReadEdge("latest", offsets=_by_partition(text, EARLIEST, wrong))


def _by_partition(text: str, least: int, wrong: str) -> dict[str, dict[int, int]]:
    """Return numbers by topic and partition; raises ValueError, which says what is `wrong`."""
    try:
        parsed = msgspec.json.decode(text, type=dict[str, dict[str, int]])
        offsets = {topic: {int(at): number for at, number in of.items()} for topic, of in parsed.items()}
    except ValueError as error:
        raise ValueError(wrong) from error
    if any(number < least for of in offsets.values() for number in of.values()):
        raise ValueError(wrong)
    return offsets


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"{name}: {text!r} is no positive number")
    return int(text)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


_BOOTSTRAP, _TOPIC = "bootstrap.servers", "topic"
_COMPRESSION, _TIMEOUT = "compression.type", "delivery.timeout.ms"
_EXACTLY_ONCE, _STAGING, _STORAGE = "exactly.once", "staging.path", "staging.storage.options"
_TRANSACTION_TIMEOUT, _APPLICATION, _VERSION = "transaction.timeout.ms", "txnAppId", "txnVersion"
_SINK_NAMES = (
    *(_BOOTSTRAP, _TOPIC, _COMPRESSION, _TIMEOUT),
    *(_EXACTLY_ONCE, _STAGING, _STORAGE, _TRANSACTION_TIMEOUT, _APPLICATION, _VERSION),
)
_CLIENT = "kafka."
"""What Spark's Kafka sink has before the configs of its producer; here those of security count."""
_CLIENTS = tuple(f"{_CLIENT}{family}" for family in FAMILIES)
_CHECKPOINT = "checkpointlocation"
_ADDED_BY_SPARK = {"path", _CHECKPOINT, "queryname"}
"""What Spark passes on of `start("/path")`, `queryName` and the checkpoint of a stream."""
_TIMEOUT_DEFAULT_MS = 120_000
"""That of Kafka's own producers."""


class ExactlyOnce(msgspec.Struct, frozen=True, kw_only=True):
    """Where tasks stage rows, and for how long a transaction may be open.

    `application` and `version` say what a batch writes. A stream has none: its query's id and its batches' numbers do.
    """

    staging: Lake
    timeout_ms: int
    application: str | None
    version: int


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where records go. Without a `topic` each row names its own; `timeout` is of a batch, in seconds."""

    bootstrap_servers: str
    security: ClientSecurity
    topic: str | None
    codec: Codec
    timeout: float
    exactly_once: ExactlyOnce | None = None


def sink_options(given: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """Parse options for writing; raises ValueError for wrong ones.

    Spark gives their names in any case, and may add its own.
    """
    clients = {name: value for name, value in given.items() if name.lower().startswith(_CLIENTS)}
    others = {name: value for name, value in given.items() if name not in clients}
    options = _known(others, _SINK_NAMES, _ADDED_BY_SPARK, "known for writing")
    if not options.get(_BOOTSTRAP):
        raise ValueError(f"the option {_BOOTSTRAP} is required")
    codec = options.get(_COMPRESSION, Codec.none.name)
    if codec not in Codec.__members__:
        raise ValueError(f"{_COMPRESSION}: {codec!r} is none of {', '.join(Codec.__members__)}")
    return SinkOptions(
        bootstrap_servers=options[_BOOTSTRAP],
        security=from_configs({name.lower().removeprefix(_CLIENT): item for name, item in clients.items()}),
        topic=options.get(_TOPIC) or None,
        codec=Codec[codec],
        timeout=(_count(options, _TIMEOUT) or _TIMEOUT_DEFAULT_MS) / 1000,
        exactly_once=_exactly_once(options, streaming=streaming),
    )


def _exactly_once(options: Mapping[str, str], *, streaming: bool) -> ExactlyOnce | None:
    if not _truth(options, _EXACTLY_ONCE, default=False):
        return None
    application, version = options.get(_APPLICATION.lower()), options.get(_VERSION.lower(), "")
    if streaming and (application is not None or version):
        raise ValueError(
            f"{_APPLICATION} and {_VERSION} are for batches: a stream has its query's id and its batches' numbers"
        )
    if not streaming and (not re.fullmatch(r"\w[\w.-]*", application or "") or not version.isdigit()):
        raise ValueError(
            f"a batch is written exactly once with {_APPLICATION}, a name of letters, digits, dots and dashes, and"
            f" {_VERSION}, a number that rises with each batch"
        )
    return ExactlyOnce(
        staging=_staging(options),
        timeout_ms=_count(options, _TRANSACTION_TIMEOUT) or TIMEOUT_MS_MAX,
        application=application,
        version=int(version or 0),
    )


def _staging(options: Mapping[str, str]) -> Lake:
    """Return where rows are staged, by default beside a stream's checkpoint; raises ValueError."""
    path, checkpoint = options.get(_STAGING), options.get(_CHECKPOINT)
    if not path and checkpoint:
        path = f"{checkpoint.rstrip('/')}/korvet-staging"
    if not path:
        raise ValueError(f"the option {_STAGING} is required: a directory or object store of all executors")
    if (parts := urlsplit(path)).scheme == "file":
        # Hadoop writes file:/directory.
        path = parts.path
    return Lake.of(path, options.get(_STORAGE, ""))
