"""External entries: what other Redis clients XADD to the stream of a log.

An external entry lies past the state's `next`, where it is not part of the log. In format `record` it becomes a
record: lua/log/renumber.lua advances `next` over entries whose ids are offsets, and moves the others, with all that
follow, to free offsets in their order. In format `batch`, where it is no record, lua/log/expel.lua removes it. Both
scripts do one bounded step; every read, append or question for the bounds that meets external entries runs them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.log.epoch_scripts import run_in_epoch
from korvet.log.epochs import NO_EPOCH, LeaderEpochs
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.replies import parsed
from korvet.telemetry import metrics
from korvet.topics.types import Partition

_LOG = logging.getLogger(__name__)
_RENUMBER = scripts.get("log/renumber")
_EXPEL = scripts.get("log/expel")

ROUNDS_MAX = 5
"""Tries to append or read past external entries: each but the first has lost a race against an external writer."""

READ_STEPS_MAX = 50
"""Steps against external entries that one read makes before it answers with what there is; the next read goes on."""

_STEP_ENTRIES_MAX = 1000
"""What one step of lua/log/renumber.lua looks at or moves: some 5 ms in which Redis serves nobody else."""

_STEP_BYTES_MAX = 2 * 1024 * 1024
"""The same bound for entries that are large."""

_STEPS_MAX = 100_000
"""Steps until a log counts as outrun: 10^8 external entries, where a writer that outruns the steps is likelier."""


class ExternalStep(NamedTuple):
    """What one step did: the entries it moved or removed, the log's end now, and whether another step is needed."""

    moved: int
    high_watermark: int
    more: bool


class ExternalEntries:
    """Takes external entries into logs of format `record`, and removes them from logs of format `batch`."""

    def __init__(self, redis: Redis, epochs: LeaderEpochs) -> None:
        self._redis = redis
        self._epochs = epochs

    def step(self, partition: Partition) -> ExternalStep:
        """Do one step; without external entries it changes nothing.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        return or_raise(*self.steps([partition]))

    def steps(self, partitions: Sequence[Partition]) -> list[ExternalStep | KafkaError]:
        """Do one step for each partition, all in one round trip.

        In the answers KafkaError as `step` raises it. Raises StorageUnavailableError.
        """
        calls = [_call(partition, len(partitions)) for partition in partitions]
        replies = run_in_epoch(self._redis, self._epochs, calls)
        steps = []
        for partition, reply in zip(partitions, replies, strict=True):
            what = "the answer of a script for external entries"
            step = parsed(partition.stream, what, reply, lambda r: ExternalStep(r[0], int(r[2]), r[1] == 1))
            if isinstance(step, ExternalStep) and step.moved:
                self._redis.order.change()
                report_moved(partition, step.moved)
            steps.append(step)
        return steps

    def take_in(self, partition: Partition, offset: int) -> KafkaError | bool:
        """Do steps until the log goes on past an offset, or no external entry is left; returns whether it did.

        What prevents it is returned as a value. Raises StorageUnavailableError.
        """
        for _ in range(READ_STEPS_MAX):
            [step] = self.steps([partition])
            if isinstance(step, KafkaError):
                return step.without_frames()
            if not step.more or step.high_watermark > offset:
                return True
        return False

    def settle(self, partition: Partition) -> KafkaError | None:
        """Do steps until no external entry is left; return what prevents it, an outage too, as a value.

        An append calls this after others were answered, and their answers must not be lost.
        """
        for _ in range(_STEPS_MAX):
            try:
                step = self.step(partition)
            except KafkaError as error:
                return error
            if not step.more:
                return None
        return outrun(partition)


def _call(partition: Partition, number: int) -> ScriptCall:
    """Return a step of one of `number` partitions, which share what Redis may do in one round trip."""
    limits = (max(1, _STEP_ENTRIES_MAX // number), _STEP_BYTES_MAX // number)
    if partition.format == "batch":
        return _EXPEL, (partition.stream, partition.state), (partition.topic_id, limits[0])
    keys = (
        partition.stream,
        partition.state,
        partition.moving,
        partition.index_key,
        partition.share_groups,
    )
    return _RENUMBER, keys, [partition.topic_id, NO_EPOCH, partition.bits, *limits, partition.channel]


def report_moved(partition: Partition, count: int) -> None:
    """Count and log that a script gave `count` external entries other ids, or in format `batch` removed them."""
    if partition.format == "batch":
        metrics.EXTERNAL_ENTRIES_REMOVED.inc(count)
        entries = (
            "1 entry that is no batch was" if count == 1 else f"{count} entries that are no batches were"
        )
        _LOG.warning("%s: %s removed", partition.stream, entries)
    else:
        metrics.ENTRIES_RENUMBERED.inc(count)
        entries = "1 external entry" if count == 1 else f"{count} external entries"
        _LOG.info("%s: %s got new offsets", partition.stream, entries)


def outrun(partition: Partition) -> KafkaError:
    """Return the error for a log to which others write faster than it can be put in order."""
    message = f"{partition.stream}: external entries arrive faster than they can be taken in"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
