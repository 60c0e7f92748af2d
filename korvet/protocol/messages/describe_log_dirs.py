"""DescribeLogDirs (key 35), versions 1-4, flexible from 2. An administrator asks how much a broker stores, and where.

Since KIP-113. Version 0 is gone since Kafka 4.0. Version 3 has an error of the whole. 4 adds the size of the volume
(KIP-827).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import boolean, int16, int32, int64, string


class DescribableLogDirTopic(Part, kw_only=True):
    topic: string
    partitions: list[int32]


class DescribeLogDirsRequest(Message, kw_only=True):
    """Asks for these partitions, or (null) for all, as the broker that is asked stores them."""

    api = Api(key=35, versions=(1, 4), flexible=2)

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Part, kw_only=True):
    """A partition and its bytes. A future one is being copied here, and offset_lag is what it has not got yet."""

    partition_index: int32
    partition_size: int64
    offset_lag: int64
    is_future_key: boolean


class DescribeLogDirsTopic(Part, kw_only=True):
    name: string
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Part, kw_only=True):
    """A log directory, and the bytes of the volume it is on: -1 if they are not known."""

    error_code: int16 = 0
    log_dir: string
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[int64, since(4, ignorable=True)] = -1
    usable_bytes: Annotated[int64, since(4, ignorable=True)] = -1


class DescribeLogDirsResponse(Response, kw_only=True):
    error_code: Annotated[int16, since(3, ignorable=True)] = 0
    results: list[DescribeLogDirsResult] = []
