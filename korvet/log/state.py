"""Ranges of a log's streams, as scripts and XRANGE take them, and whose a state is."""

from __future__ import annotations

from korvet_core import RawReply, pack_command

from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.redis.client import Redis
from korvet.topics.entry_ids import id_of_end
from korvet.topics.types import Partition

SEGMENTS = (b"0", b"1")
"""The numbers of the two streams that compaction writes to in turn, as the state names them."""


def range_start(partition: Partition, offset: int) -> str:
    """Return where an XRANGE from `offset` on begins.

    It is exclusive of the entry before: between two milliseconds lie ids without an offset, and a read from behind
    these ids would miss entries still to come into the log.
    """
    return f"({id_of_end(offset, partition.bits)}"


def read_range(
    redis: Redis, partition: Partition, stream: str, first: int, end: int, entries_max: int
) -> RawReply:
    """Return the entries of a stream from one offset to another (exclusive), both between two entries, for the core.

    Raises KafkaError for what prevented it.
    """
    limits = range_start(partition, first), id_of_end(end, partition.bits)
    return or_raise(
        *redis.begin_raw([pack_command(("XRANGE", stream, *limits, "COUNT", entries_max))]).result()
    )


def stale_topic(partition: Partition) -> KafkaError:
    """Return the error for a state with another topic id, or none."""
    message = f"{partition.stream} does not belong to topic id {partition.topic_id}"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
