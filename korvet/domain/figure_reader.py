"""Takes the figures of logs out of Redis, many at a time and without reading again what cannot have changed.

Knows which entries have to be looked at; what the figures mean stands in log_figures.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.domain.log_figures import LogFigures
from korvet.errors import KafkaError
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.storage.figures_store import FiguresStore, LogLook
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Fetched, Partition, Read

_FIRST_ENTRIES_PER_READ = 10
"""First entries asked for at once: one may be a batch of many megabytes."""

_Beginning = tuple[str, int, int]
"""Topic id, first offset and end of the compacted part: while they stay the first record does."""


class LogFigureReader:
    """Takes the figures of logs; remembers from one round to the next how old the first records were."""

    def __init__(self, store: FiguresStore, logs: LogStore) -> None:
        self._store = store
        self._logs = logs
        # By stream: what the first record hangs on, and its timestamp (ms).
        self._before: dict[str, tuple[_Beginning, int]] = {}
        self._now: dict[str, tuple[_Beginning, int]] = {}

    def begin_round(self) -> None:
        """Forget what no log of the last round needed: its topic was deleted."""
        self._before, self._now = self._now, {}

    def read(self, partitions: Sequence[Partition]) -> tuple[list[LogFigures], list[KafkaError]]:
        """Return the figures of these logs, and what is wrong with the others; each log once in a round.

        One round trip, and one for each ten logs whose first record is another than in the round before. Raises
        KafkaError, StorageUnavailableError.
        """
        now_ms, outcomes = self._store.look(partitions)
        pairs = list(zip(partitions, outcomes, strict=True))
        looks = {partition: look for partition, look in pairs if isinstance(look, LogLook)}
        errors = [look for look in outcomes if isinstance(look, KafkaError)]
        oldest = self._oldest(looks, errors)
        return [_figures(*pair, oldest.get(pair[0]), now_ms) for pair in looks.items()], errors

    def _oldest(self, looks: dict[Partition, LogLook], errors: list[KafkaError]) -> dict[Partition, int]:
        """Return the timestamp (ms) of the first record of each log that has one."""
        oldest: dict[Partition, int] = {}
        unknown: list[Read] = []
        for partition, look in looks.items():
            if look.first_offset >= look.high_watermark:
                continue
            before = self._before.get(partition.stream)
            if before is not None and before[0] == _beginning(partition, look):
                oldest[partition] = before[1]
            else:
                unknown.append(Read(partition, look.first_offset, 1))
        for at in range(0, len(unknown), _FIRST_ENTRIES_PER_READ):
            reads = unknown[at : at + _FIRST_ENTRIES_PER_READ]
            for read, fetched in zip(reads, self._logs.read(reads), strict=True):
                if isinstance(fetched, KafkaError):
                    errors.append(fetched)
                elif (found := _first_timestamp(fetched)) is not None:
                    oldest[read.partition] = found
        for partition, timestamp in oldest.items():
            self._now[partition.stream] = (_beginning(partition, looks[partition]), timestamp)
        return oldest


def _beginning(partition: Partition, look: LogLook) -> _Beginning:
    return partition.topic_id, look.first_offset, look.clean_end


def _first_timestamp(fetched: Fetched) -> int | None:
    if fetched.batches:
        header = fetched.batches[0].header
        return header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else header.base_timestamp
    return fetched.records[0][1] if fetched.records else None


def _figures(partition: Partition, look: LogLook, oldest_ms: int | None, now_ms: int) -> LogFigures:
    return LogFigures(
        topic=partition.topic,
        partition=partition.index,
        records=look.records,
        size_bytes=look.size_bytes,
        index_rows=look.index_rows,
        compacted_bytes=look.compacted_bytes,
        start_offset=look.first_offset,
        end_offset=look.high_watermark,
        oldest_age_ms=None if oldest_ms is None else now_ms - oldest_ms,
    )
