"""DescribeLogDirs (key 35), versions 1-4: how much a broker stores, and where (KIP-113, KIP-827).

All brokers share one Redis, so each reports the partitions that it leads: summed over the brokers each log counts once.
The size is that of the stored entries, which retention counts too; the volume (version 4) is Redis' maxmemory and what
is left of it, -1 without one. Partitions that do not exist, or are led by another broker, are left out, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import register
from korvet.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from korvet.topics.registry import Topic
from korvet.topics.types import Partition


def handle(request: DescribeLogDirsRequest, _caller: Caller, api: ClusterApi) -> DescribeLogDirsResponse:
    """Describe the one log directory; it is offline while Redis is away."""
    log_dir = api.log_dir
    try:
        live = api.cluster.refresh()
        api.topics.refresh()
        led: list[Partition] = []
        for topic, indexes in _asked(request, api):
            leaders = live.leaders(topic.name, len(topic.partitions), topic.assignment)
            led += [topic.partitions[each] for each in indexes if leaders[each] == api.cluster.this.broker_id]
        sizes = log_dir.sizes(led)
    except StorageUnavailableError as error:
        offline = DescribeLogDirsResult(error_code=error.code, log_dir=log_dir.place)
        return DescribeLogDirsResponse(results=[offline])
    room = log_dir.space()
    result = DescribeLogDirsResult(
        log_dir=log_dir.place,
        topics=_topics(zip(led, sizes, strict=True)),
        total_bytes=room.total_bytes,
        usable_bytes=room.usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


def refuse(_request: DescribeLogDirsRequest, _caller: Caller, error: KafkaError) -> DescribeLogDirsResponse:
    """Answer with the error, which versions before 3 do not carry, and no directory."""
    return DescribeLogDirsResponse(error_code=error.code)


def _asked(request: DescribeLogDirsRequest, api: ClusterApi) -> Iterable[tuple[Topic, Iterable[int]]]:
    """Return the topics asked for, each with the indexes of the partitions asked for that it has, each once."""
    if request.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in api.topics.list_cached()]
    indexes: dict[str, set[int]] = {}
    for asked in request.topics:
        indexes.setdefault(asked.topic, set()).update(asked.partitions)
    found = [(api.topics.get_cached(name), wanted) for name, wanted in indexes.items()]
    return [
        (topic, sorted(wanted.intersection(range(len(topic.partitions)))))
        for topic, wanted in found
        if topic is not None
    ]


def _topics(sizes: Iterable[tuple[Partition, int | None]]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition, size in sizes:
        if size is None:
            continue
        topic = topics.setdefault(partition.topic, DescribeLogDirsTopic(name=partition.topic, partitions=[]))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index, partition_size=size, offset_lag=0, is_future_key=False
            )
        )
    return list(topics.values())


register(DescribeLogDirsRequest, ClusterApi, handle, refuse)
