"""What a topic asks of the records themselves: a key where it is compacted, and a time near the broker's.

Knows Kafka's rules for both, which refuse the whole batch for one wrong record and name those that are (KIP-467);
nothing of how a batch is decoded or written. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from korvet.domain.topic_config import TopicConfig
from korvet.domain.topic_config_table import LONG_MAX
from korvet.errors import ErrorCode, RecordsRefusedError
from korvet.protocol.records.record import Record

NO_TIMESTAMP = -1
"""What a record carries whose producer gave it no time; it is never out of range."""

NAMED_MAX = 1000
"""Records that an answer names at the most: a batch may hold millions of them."""


def needed(base_timestamp: int, max_timestamp: int, config: TopicConfig, now_ms: int) -> bool:
    """Return whether a batch that is kept as it came must be decoded for `check`.

    The timestamps are what the batch's header says, which is enough to see that nothing lies too far in the future.
    One whose largest is below its first does not tell its largest, as Sarama's did not until 2025 (IBM/sarama 3108).
    """
    if config.compact:
        return True
    if config.log_append_time:
        return False
    if max_timestamp < base_timestamp:
        return True
    return config.timestamp_before_max_ms < LONG_MAX or max_timestamp > now_ms + config.timestamp_after_max_ms


def check(records: Sequence[Record], config: TopicConfig, now_ms: int) -> int:
    """Check the records of a batch, and return the largest of their times.

    Raises RecordsRefusedError: INVALID_RECORD for one without a key on a compacted topic, INVALID_TIMESTAMP for one out
    of range; where both occur, INVALID_TIMESTAMP (Kafka's LogValidator).
    """
    timestamps = [record.timestamp for record in records]
    largest = max(timestamps)
    # The batch as a whole first, which does for nearly all of them and costs next to nothing for each record.
    suspicious = config.compact and None in [record.key for record in records]
    if not config.log_append_time:
        earliest, latest = _range(config, now_ms)
        suspicious = suspicious or largest > latest
        if config.timestamp_before_max_ms < LONG_MAX:
            suspicious = suspicious or min(timestamps) < earliest
    if suspicious:
        _refuse(records, config, now_ms)
    return largest


def _refuse(records: Sequence[Record], config: TopicConfig, now_ms: int) -> None:
    """Raise the error that names the wrong records, where there are any: records without a time only look like it."""
    code, count = ErrorCode.INVALID_RECORD, 0
    named: list[tuple[int, str]] = []
    for index, wrong, message in _wrong(records, config, now_ms):
        if wrong is ErrorCode.INVALID_TIMESTAMP:
            code = wrong
        count += 1
        if len(named) < NAMED_MAX:
            named.append((index, message))
    if named:
        index, message = named[0]
        summary = f"{count} of {len(records)} records are wrong; the first of them, at {index}: {message}"
        raise RecordsRefusedError(code, summary, named)


def _range(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms


def _wrong(
    records: Sequence[Record], config: TopicConfig, now_ms: int
) -> Iterator[tuple[int, ErrorCode, str]]:
    earliest, latest = _range(config, now_ms)
    for index, record in enumerate(records):
        if config.compact and record.key is None:
            yield index, ErrorCode.INVALID_RECORD, "a record of a compacted topic needs a key"
        elif config.log_append_time or record.timestamp == NO_TIMESTAMP:
            continue
        elif not earliest <= record.timestamp <= latest:
            message = f"the timestamp {record.timestamp} is not in {earliest}..{latest}"
            yield index, ErrorCode.INVALID_TIMESTAMP, message
