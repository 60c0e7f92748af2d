"""AlterReplicaLogDirs (key 34), versions 1-2, flexible from 2. Moves partitions of one broker between its directories.

Since KIP-113. Version 0 is gone since Kafka 4.0.
"""

from __future__ import annotations

from korvet.protocol.parts import PartitionError
from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import int32, string


class AlterReplicaLogDirTopic(Part, kw_only=True):
    name: string
    partitions: list[int32]


class AlterReplicaLogDir(Part, kw_only=True):
    """A log directory by its name in DescribeLogDirs, and what is to be moved there."""

    path: string
    topics: list[AlterReplicaLogDirTopic]


class AlterReplicaLogDirsRequest(Message, kw_only=True):
    api = Api(key=34, versions=(1, 2), flexible=2)

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirTopicResult(Part, kw_only=True):
    topic_name: string
    partitions: list[PartitionError]


class AlterReplicaLogDirsResponse(Response, kw_only=True):
    results: list[AlterReplicaLogDirTopicResult] = []
