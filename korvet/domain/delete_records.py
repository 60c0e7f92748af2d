"""Deleting the oldest records at an administrator's word (DeleteRecords).

Knows what an offset to delete up to may be, and what is answered; nothing of messages or of topics. Kafka's rules
(Partition.deleteRecordsOnLeader): an offset behind the high watermark is out of range, one below the log start changes
nothing, and both the answer and the start of the log are exact, whatever the memory below is still to be given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from korvet.domain.trimming import BackgroundTrims, Start, Trimmer
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.lake_store import LakeStore
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Bounds, Partition

HIGH_WATERMARK = -1
"""The offset that stands for the end of the log."""


class Deletion(msgspec.Struct, frozen=True):
    """Everything in `partition` below `offset` is to go; HIGH_WATERMARK is all there is."""

    partition: Partition
    offset: int


class RecordDeletion:
    """Deletes for the administrators of one worker."""

    def __init__(self, log: LogStore, lake: LakeStore, trimmer: Trimmer, background: BackgroundTrims) -> None:
        self._log = log
        self._lake = lake
        self._trimmer = trimmer
        self._background = background

    def delete(self, deletions: Sequence[Deletion]) -> list[int | KafkaError]:
        """Do each deletion; returns in order the log starts, or why there is none.

        In the answers KafkaError: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        answers: list[int | KafkaError] = []
        starts: dict[int, Start] = {}
        archived: set[int] = set()
        bounds = self._log.bounds([deletion.partition for deletion in deletions])
        for place, (deletion, found) in enumerate(zip(deletions, bounds, strict=True)):
            if isinstance(found, KafkaError):
                answers.append(found)
                continue
            wished = _wished(deletion, found)
            if not isinstance(wished, KafkaError):
                if wished > found.log_start:
                    starts[place] = Start(deletion.partition, wished)
                    if found.archived > 0:
                        archived.add(place)
                wished = max(wished, found.first_offset)
            answers.append(wished)
        for place, error in self._delete(starts, archived):
            answers[place] = error
        return answers

    def _delete(self, starts: dict[int, Start], archived: set[int]) -> Iterator[tuple[int, KafkaError]]:
        """Let logs start there in both tiers; yields the places where that failed."""
        failed = dict(self._expire({place: starts[place] for place in archived}))
        starts = {place: start for place, start in starts.items() if place not in failed}
        outcomes = self._trimmer.move(list(starts.values()), "delete_records")
        for (place, start), outcome in zip(starts.items(), outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                failed[place] = outcome
            elif outcome.more:
                self._background.give_back(start.partition, self._trimmer)
        # Of these nothing was archived at first; by now an archiver may have told of what was deleted.
        failed |= self._expire({place: start for place, start in starts.items() if place not in archived})
        yield from failed.items()

    def _expire(self, starts: dict[int, Start]) -> Iterator[tuple[int, KafkaError]]:
        """Let logs start there in the lake, where they are archived; yields the places where that failed.

        This comes first: a start in Redis that lies behind the one in the lake would bring back what is deleted.
        """
        expired = self._lake.expire(list(starts.values())) if starts else []
        for place, outcome in zip(starts, expired, strict=True):
            if isinstance(outcome, KafkaError):
                yield place, outcome


def _wished(deletion: Deletion, bounds: Bounds) -> int | KafkaError:
    offset = bounds.high_watermark if deletion.offset == HIGH_WATERMARK else deletion.offset
    if 0 <= offset <= bounds.high_watermark:
        return offset
    message = f"{deletion.offset} is not in {bounds.log_start}..{bounds.high_watermark}"
    return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
