"""AlterReplicaLogDirs (key 34), versions 1-2: moves of partitions between log directories, of which there are none.

A partition has one directory, as on a Kafka with one: a request for that one is done, and any other is not found. The
names are those of DescribeLogDirs.

Errors: INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.errors import ErrorCode
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.log.stats import LogDirs
from korvet.protocol.messages import alter_replica_log_dirs as wire
from korvet.protocol.parts import PartitionError
from korvet.topics.registry import Topic

_FUTURE = f".{'0' * 32}-future"
_FILE_NAME_LENGTH_MAX = 255
"""Kafka's limit for the directory of a partition while it is moved, which ends in a random number and `-future`."""


def handle(
    request: wire.AlterReplicaLogDirsRequest, _caller: Caller, services: Services
) -> wire.AlterReplicaLogDirsResponse:
    """Answer each partition; of one that is named in several directories the last one counts, as in Kafka."""
    live = services.cluster.refresh()
    services.topics.refresh()
    names = services.log_dirs.names()
    outcomes: dict[str, dict[int, ErrorCode]] = {}
    for name, paths in _paths(request).items():
        topic = services.topics.get_cached(name)
        placed = live.placed(name, len(topic.partitions), topic.assignment) if topic is not None else []
        here = [services.cluster.this.broker_id in placement.replicas for placement in placed]
        outcomes[name] = {}
        for index, path in paths.items():
            if len(f"{name}-{index}{_FUTURE}") > _FILE_NAME_LENGTH_MAX:
                outcomes[name][index] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif path not in names:
                outcomes[name][index] = ErrorCode.LOG_DIR_NOT_FOUND
            else:
                outcomes[name][index] = _outcome(topic, here, index, path, services.log_dirs)
    return _response(outcomes)


def _paths(request: wire.AlterReplicaLogDirsRequest) -> dict[str, dict[int, str]]:
    paths: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            paths.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    return paths


def _outcome(
    topic: Topic | None, here: Sequence[bool], index: int, path: str, log_dirs: LogDirs
) -> ErrorCode:
    """Return the outcome for a directory that exists; `here` says which partitions of the topic this broker has."""
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not here[index]:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    # Each node of a Redis Cluster is a directory, but no broker moves a partition to another node.
    is_there = path == log_dirs.name_of(topic.partitions[index])
    return ErrorCode.NONE if is_there else ErrorCode.LOG_DIR_NOT_FOUND


def _response(outcomes: Mapping[str, Mapping[int, ErrorCode]]) -> wire.AlterReplicaLogDirsResponse:
    results = [
        wire.AlterReplicaLogDirTopicResult(
            topic_name=name,
            partitions=[
                PartitionError(partition_index=index, error_code=code) for index, code in codes.items()
            ],
        )
        for name, codes in outcomes.items()
    ]
    return wire.AlterReplicaLogDirsResponse(results=results)


register(
    handle,
    lambda request, _caller, error: _response(
        {name: dict.fromkeys(paths, error.code) for name, paths in _paths(request).items()}
    ),
    rights=[on_cluster(ALTER)],
    changes=lambda _request, response: (
        (f"{topic.topic_name}:{partition.partition_index}", partition.error_code)
        for topic in response.results
        for partition in topic.partitions
    ),
)
