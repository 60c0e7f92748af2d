"""Moving the start of a log: at once for whoever reads, while the memory below it is given back step by step.

Knows that a start moves forward only, and who counts what left; nothing of why it moves. In the background a worker
works at each partition once at a time, and what fails there is told once, not to a client: the keeper does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import gevent

from korvet import logs
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Partition, Read
from korvet.storage.trim_store import Trim, Trimmed, TrimStore

_log = logs.Log(__name__)

_FIRST_RECORDS_PER_READ = 10
"""First records asked for at once: one may be a batch of many megabytes."""

Reason = Literal["time", "size", "delete_records"]
"""Why records leave a log."""

CountTrimmed = Callable[[Reason, int], None]
"""Is told of records that left a log."""


class Start(NamedTuple):
    """An offset that a log is to start at."""

    partition: Partition
    offset: int


class Trimmer:
    """Moves the starts of logs."""

    def __init__(self, log: LogStore, store: TrimStore, count: CountTrimmed) -> None:
        self._log = log
        self._store = store
        self._count = count

    def move(self, starts: Sequence[Start], reason: Reason) -> list[Trimmed | KafkaError]:
        """Move each start, unless it lies there or behind already, and give back a first piece of memory.

        What is reported as log start is the first record from there on. In the answers KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (behind the end), KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        trims: list[Trim] = []
        for at in range(0, len(starts), _FIRST_RECORDS_PER_READ):
            some = starts[at : at + _FIRST_RECORDS_PER_READ]
            fetched = self._log.read([Read(start.partition, start.offset, 1) for start in some])
            for (partition, offset), found in zip(some, fetched, strict=True):
                first = -1
                # Without an answer the script, which asks for the same key, says what is wrong.
                if not isinstance(found, KafkaError):
                    if found.batches:
                        first = max(found.batches[0].base_offset, offset)
                    elif found.records:
                        first = found.records[0][0]
                trims.append(Trim(partition, offset, first))
        outcomes = self._store.trim(trims)
        for outcome in outcomes:
            if isinstance(outcome, Trimmed) and outcome.records:
                self._count(reason, outcome.records)
        return outcomes

    def give_back(self, partition: Partition) -> bool:
        """Give back a piece of the memory below the start; returns whether there is more.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        [outcome] = self._store.trim([Trim(partition)])
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome.more


class BackgroundTrims:
    """Work at logs that no request waits for: at most one greenlet for each partition."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._warned: set[str] = set()

    def begin(self, partition: Partition, work: Callable[[], None]) -> None:
        """Do `work` beside everything else, unless something is being done for the partition already."""
        if partition.stream not in self._under_way:
            self._under_way.add(partition.stream)
            gevent.spawn(self._run, partition.stream, work)

    def give_back(self, partition: Partition, trimmer: Trimmer) -> None:
        """Give back all memory below the partition's start."""

        def work() -> None:
            while trimmer.give_back(partition):
                pass

        self.begin(partition, work)

    def _run(self, stream: str, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaError as error:
            # A topic that was deleted meanwhile has nothing left to be trimmed.
            is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not is_gone and stream not in self._warned:
                self._warned.add(stream)
                _log.warning("log not trimmed", key=stream, reason=error)
        else:
            self._warned.discard(stream)
        finally:
            self._under_way.discard(stream)
