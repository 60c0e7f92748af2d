"""The options of the data source `korvet`, for reading and for writing.

Names and forms are those of Spark's Kafka source and sink if they have the option, so that a query changes its format
and little else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from korvet.admin.security import FAMILIES, ClientSecurity, from_configs
from korvet.config.settings import Settings
from korvet.config.sources import with_password
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.protocol.records.compression import Codec
from korvet.redis.url import running_url

Edge: TypeAlias = Literal["earliest", "latest"]
EARLIEST, LATEST = -2, -1
"""As offsets of one partition."""

_NAMES = (
    *("redis.url", "redis.password.file", "data.dir", "namespace", "topic", "lake", "lake.storage.options"),
    *("replicas", "min.insync.replicas"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxRecordsPerPartition", "maxRecordsPerTrigger", "failOnDataLoss"),
)


class ReadEdge(msgspec.Struct, frozen=True):
    """Where reading starts or ends: a timestamp (ms), else an offset for each partition, else an end of all logs."""

    edge: Edge
    offsets: dict[int, int] | None = None
    timestamp: int | None = None


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that a query reads, and how much of it at once."""

    source: LakeSource
    topic: str
    starting: ReadEdge | None
    ending: ReadEdge
    records_per_partition: int | None
    records_per_trigger: int | None
    fail_on_data_loss: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse options for reading; raises ValueError for wrong ones, ConfigError for `data.dir`.

    Spark gives their names in any case, and may add its own.
    """
    found = _known(given, _NAMES, {"path"}, "known")
    topic = found.get("topic", "")
    if not topic:
        raise ValueError("the option topic is required")
    starting = _read_edge(found, topic, "starting")
    ending = _read_edge(found, topic, "ending")
    if ending is not None and ending.edge == "earliest":
        raise ValueError("endingOffsets cannot be earliest")
    return ReadOptions(
        source=LakeSource(
            redis_url=_redis_url(found),
            lake=Lake.of(found.get("lake", ""), found.get("lake.storage.options", "")),
            namespace=found.get("namespace", "korvet"),
            replicas=_count(found, "replicas") or 0,
            min_insync_replicas=_count(found, "min.insync.replicas") or 1,
        ),
        topic=topic,
        starting=starting,
        ending=ending or ReadEdge("latest"),
        records_per_partition=_count(found, "maxRecordsPerPartition"),
        records_per_trigger=_count(found, "maxRecordsPerTrigger"),
        fail_on_data_loss=_truth(found, "failOnDataLoss"),
    )


def _known(given: Mapping[str, str], names: Sequence[str], of_spark: set[str], known: str) -> dict[str, str]:
    """Return options by their names in lower case; raises ValueError for one that is unknown."""
    found = {name.lower(): value for name, value in given.items()}
    unknown = sorted(found.keys() - {name.lower() for name in names} - of_spark)
    if unknown:
        raise ValueError(f"unknown option {unknown[0]}; {known} are {', '.join(names)}")
    return found


def _redis_url(found: Mapping[str, str]) -> str:
    """Return where the log is; a password is read here, and goes to Spark's workers with their tasks."""
    url, password_file = found.get("redis.url", ""), found.get("redis.password.file")
    return with_password(url, password_file) if password_file else url or _embedded(found)


def _embedded(found: Mapping[str, str]) -> str:
    directory = Path(found.get("data.dir") or Settings().data_dir).expanduser().absolute()
    url = running_url(directory)
    if url is None:
        raise ValueError(
            f"the option redis.url is required: no embedded server runs on {directory} (data.dir)"
        )
    return url


def _read_edge(found: Mapping[str, str], topic: str, which: Literal["starting", "ending"]) -> ReadEdge | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    offsets, timestamp = found.get(by_offset.lower()), found.get(by_time.lower())
    if offsets is not None and timestamp is not None:
        raise ValueError(f"{by_offset} and {by_time} exclude each other")
    if timestamp is not None:
        if not timestamp.isdigit():
            raise ValueError(f"{by_time}: {timestamp!r} is no timestamp in milliseconds")
        return ReadEdge("latest", timestamp=int(timestamp))
    match offsets:
        case None:
            return None
        case "earliest" | "latest":
            return ReadEdge(offsets)
    return ReadEdge("latest", offsets=_offsets(by_offset, offsets, topic))


def _offsets(name: str, text: str, topic: str) -> dict[int, int]:
    wrong = f'{name}: {text!r} is not earliest, latest or as {{"{topic}": {{"0": 23, "1": -1}}}}'
    try:
        parsed = json.loads(text)
        offsets = {int(partition): offset for partition, offset in parsed[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(wrong) from error
    if len(parsed) != 1 or not all(isinstance(each, int) and each >= EARLIEST for each in offsets.values()):
        raise ValueError(wrong)
    return offsets


def _count(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"{name}: {text!r} is no positive number")
    return int(text)


def _truth(found: Mapping[str, str], name: str) -> bool:
    text = found.get(name.lower(), "true").lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


_BOOTSTRAP, _TOPIC = "bootstrap.servers", "topic"
_COMPRESSION, _TIMEOUT = "compression.type", "delivery.timeout.ms"
_SINK_NAMES = (_BOOTSTRAP, _TOPIC, _COMPRESSION, _TIMEOUT)
_CLIENT = "kafka."
"""What Spark's Kafka sink has before the configs of its producer; here those of security count."""
_CLIENTS = tuple(f"{_CLIENT}{family}" for family in FAMILIES)
_TIMEOUT_DEFAULT_MS = 120_000
"""That of Kafka's own producers."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where records go. Without a `topic` each row names its own; `timeout` is of a batch, in seconds."""

    bootstrap_servers: str
    security: ClientSecurity
    topic: str | None
    codec: Codec
    timeout: float


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse options for writing; raises ValueError for wrong ones.

    Spark gives their names in any case, and may add its own.
    """
    clients = {name: value for name, value in given.items() if name.lower().startswith(_CLIENTS)}
    others = {name: value for name, value in given.items() if name not in clients}
    found = _known(others, _SINK_NAMES, {"path", "checkpointlocation"}, "known for writing")
    if not found.get(_BOOTSTRAP):
        raise ValueError(f"the option {_BOOTSTRAP} is required")
    codec = found.get(_COMPRESSION, Codec.none.name)
    if codec not in Codec.__members__:
        raise ValueError(f"{_COMPRESSION}: {codec!r} is none of {', '.join(Codec.__members__)}")
    return SinkOptions(
        bootstrap_servers=found[_BOOTSTRAP],
        security=from_configs({name.lower().removeprefix(_CLIENT): each for name, each in clients.items()}),
        topic=found.get(_TOPIC) or None,
        codec=Codec[codec],
        timeout=(_count(found, _TIMEOUT) or _TIMEOUT_DEFAULT_MS) / 1000,
    )
