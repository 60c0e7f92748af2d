"""Parts of messages of several APIs that belong to none of them."""

from __future__ import annotations

from korvet.protocol.schema import Part
from korvet.protocol.wire import int16, int32, string


class PartitionError(Part, kw_only=True):
    """The result for a partition: an error code, and nothing else."""

    partition_index: int32
    error_code: int16


class TopicErrors(Part, kw_only=True):
    """The results for partitions of a topic."""

    name: string
    partitions: list[PartitionError]
