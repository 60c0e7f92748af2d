"""What Redis knows about the size of logs, many in one round trip: the state's counters and the index's rows.

Knows which fields of the state count something; nothing of what is made of them. It asks for no entry of a stream, so
what a look costs does not hang on how large records are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import log_replies
from korvet.storage.keys import Keys
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply
from korvet.storage.resp import Arg, Redis

# Those behind `topic` may be absent, which means 0 but for `first`: none before the first entry.
_FIELDS = (
    *("topic", "next", "start", "first", "bytes", "records", "start_records", "start_bytes"),
    *("clean_end", "clean_bytes"),
)
_COMMANDS_PER_LOG = 2


class LogLook(NamedTuple):
    """One log as its state tells of it.

    `first_offset` is the log start that responses report, the high watermark in an empty log. `records` and
    `size_bytes` (as entries are stored) are what lies between the two, to one row of the index. Below `clean_end` the
    log is compacted, to `compacted_bytes`; 0 and None: nowhere.
    """

    first_offset: int
    high_watermark: int
    records: int
    size_bytes: int
    index_rows: int
    clean_end: int
    compacted_bytes: int | None


class FiguresStore:
    """Looks at the logs of one namespace."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def look(self, partitions: Sequence[Partition]) -> tuple[int, list[LogLook | KafkaError]]:
        """Return Redis' clock (ms) and what its state tells of each log, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        commands: list[Sequence[Arg]] = [("TIME",)]
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *_FIELDS),
                ("ZCARD", self._keys.index(partition.topic, partition.index)),
            )
        time, *replies = self._redis.pipeline(commands)
        states, rows = replies[::_COMMANDS_PER_LOG], replies[1::_COMMANDS_PER_LOG]
        return _milliseconds(time), [
            _look(partition, state, count)
            for partition, state, count in zip(partitions, states, rows, strict=True)
        ]


def _look(partition: Partition, state: Reply, index_rows: Reply) -> LogLook | KafkaError:
    try:
        topic_id, *fields = log_replies.listed(partition.state, state)
        if topic_id != partition.topic_id.encode():
            message = f"{partition.stream} does not belong to topic id {partition.topic_id}"
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        texts = cast("list[bytes | None]", fields)
        end, start, first, size_bytes, records, start_records, start_bytes, *clean = map(_number, texts)
        clean_end, clean_bytes = clean
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return log_replies.malformed(partition.state, "a field")
    if not isinstance(index_rows, int):
        return log_replies.malformed(partition.state, "the index")
    # In format `batch` offsets are dense, and so the end is the count.
    written = end if partition.format == "batch" else records
    return LogLook(
        first_offset=end if texts[2] is None else min(max(start, first), end),
        high_watermark=end,
        records=max(written - start_records, 0),
        size_bytes=max(size_bytes - start_bytes, 0),
        index_rows=index_rows,
        clean_end=clean_end,
        compacted_bytes=max(clean_bytes - start_bytes, 0) if clean_end > 0 else None,
    )


def _number(text: bytes | None) -> int:
    return 0 if text is None else int(text)


def _milliseconds(time: Reply) -> int:
    try:
        seconds, microseconds = cast("list[bytes]", time)
        return int(seconds) * 1000 + int(microseconds) // 1000
    except (ValueError, TypeError) as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Redis answered TIME with {time!r}") from error
