"""DescribeLogDirs (key 35), versions 1-4: how much a broker stores, and where (KIP-113, KIP-827).

All brokers share one Redis, so each reports the partitions that it leads: summed over the brokers each log counts once.
Redis is the one log directory of each, or each node of a cluster is one. The size is that of the stored entries, which
retention counts too; the volume (version 4) is Redis' maxmemory and what is left of it, -1 without one. Partitions that
do not exist, or are led by another broker, are left out, as in Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from korvet.errors import StorageUnavailableError
from korvet.handlers.common import error_code, refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_cluster
from korvet.log.stats import LogDirUsage
from korvet.protocol.messages import describe_log_dirs as wire
from korvet.topics.registry import Topic
from korvet.topics.types import Partition


def handle(
    request: wire.DescribeLogDirsRequest, _caller: Caller, services: Services
) -> wire.DescribeLogDirsResponse:
    """Describe the log directories; one whose server is away is offline."""
    try:
        live = services.cluster.refresh()
        services.topics.refresh()
        led: list[Partition] = []
        for topic, indexes in _asked(request, services):
            leaders = live.leaders(topic.name, len(topic.partitions), topic.assignment)
            led += [
                topic.partitions[index]
                for index in indexes
                if leaders[index] == services.cluster.this.broker_id
            ]
        directories = services.log_dirs.describe(led)
    except StorageUnavailableError as error:
        directories = services.log_dirs.offline(error)
    return wire.DescribeLogDirsResponse(results=[_result(directory) for directory in directories])


def _result(directory: LogDirUsage) -> wire.DescribeLogDirsResult:
    partitions = defaultdict[str, list[wire.DescribeLogDirsPartition]](list)
    for partition, size in directory.sizes:
        if size is not None:
            partitions[partition.topic].append(
                wire.DescribeLogDirsPartition(
                    partition_index=partition.index, partition_size=size, offset_lag=0, is_future_key=False
                )
            )
    return wire.DescribeLogDirsResult(
        error_code=error_code(directory.error),
        log_dir=directory.name,
        topics=[
            wire.DescribeLogDirsTopic(name=topic, partitions=described)
            for topic, described in partitions.items()
        ],
        total_bytes=directory.space.total_bytes,
        usable_bytes=directory.space.usable_bytes,
    )


def _asked(request: wire.DescribeLogDirsRequest, services: Services) -> Iterable[tuple[Topic, Iterable[int]]]:
    """Return the topics asked for, each with the indexes of the partitions asked for that it has, each once."""
    if request.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in services.topics.list_cached()]
    indexes: dict[str, set[int]] = {}
    for asked in request.topics:
        indexes.setdefault(asked.topic, set()).update(asked.partitions)
    return [
        (topic, sorted(wanted.intersection(range(len(topic.partitions)))))
        for name, wanted in indexes.items()
        if (topic := services.topics.get_cached(name)) is not None
    ]


register(handle, refuse_whole(wire.DescribeLogDirsResponse), rights=[on_cluster(DESCRIBE)])
