"""The times that the broker put on records instead of their producers' (LogAppendTime), as the producers are told them.

Knows that a batch sent twice keeps the time of its first coming, which is read from the log; nothing of how records
get a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import KafkaError
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Append, AppendBatch, Appended, Fetched, Read

UNKNOWN = -1
"""The answer where the log does not hold the batch any more; producers then take it for their own time."""


def stamped(
    log: LogStore, appends: Sequence[Append | AppendBatch], outcomes: Sequence[Appended | KafkaError]
) -> list[Appended | KafkaError]:
    """Return the outcomes of the appends with the times that their records have in the log."""
    told = list(outcomes)
    duplicates: list[tuple[int, Appended, Read]] = []
    for at, (append, outcome) in enumerate(zip(appends, outcomes, strict=True)):
        if append.timestamp is None or isinstance(outcome, KafkaError):
            continue
        told[at] = outcome._replace(timestamp=append.timestamp)
        if outcome.duplicate:
            duplicates.append((at, outcome, Read(append.partition, outcome.base_offset, 1)))
    if duplicates:
        times = _stored(log, [read for _, _, read in duplicates])
        for (at, outcome, _), timestamp in zip(duplicates, times, strict=True):
            told[at] = outcome._replace(timestamp=timestamp)
    return told


def _stored(log: LogStore, reads: Sequence[Read]) -> list[int]:
    """Return the time of the record at each read's offset, as far as it is known."""
    try:
        answers = log.read(reads)
    except KafkaError:
        return [UNKNOWN] * len(reads)
    return [
        UNKNOWN if isinstance(answer, KafkaError) else _time_at(answer, read.offset)
        for answer, read in zip(answers, reads, strict=True)
    ]


def _time_at(fetched: Fetched, offset: int) -> int:
    for batch in fetched.batches:
        if batch.base_offset <= offset < batch.next_offset:
            return batch.header.max_timestamp
    for at, timestamp, *_ in fetched.records:
        if at == offset:
            return timestamp
    return UNKNOWN
