"""What a log does for share groups whose parts are Redis groups of its stream: converts them (lua/share/convert.lua).

Entries that compaction moves, or retention leaves to the remote tier, stay in the log but leave the stream.
"""

from __future__ import annotations

from korvet.redis import scripts
from korvet.redis.client import Arg, Redis
from korvet.redis.replies import checked
from korvet.topics.types import Partition

_CONVERT = scripts.get("share/convert")


def convert_redis_groups(redis: Redis, partition: Partition, *group: str) -> None:
    """Convert the parts that are Redis groups, or that of one group, one at a time; raises KafkaError."""
    keys = (partition.stream, partition.state, partition.share_groups)
    args: list[Arg] = [partition.topic_id, partition.bits, *group]
    while True:
        [reply] = redis.scripts([(_CONVERT, keys, args)])
        if checked(partition.share_groups, reply) != 1:
            return
