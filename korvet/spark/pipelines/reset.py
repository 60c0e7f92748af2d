"""Where a stopped pipeline goes on: its queries begin again at other offsets, with new checkpoints.

A new checkpoint gives its query another id, so no target takes the batches of the new one for those of before. The
tables stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from korvet.cluster.pipelines import MAIN, QueryPosition
from korvet.lake.source import LakeSource
from korvet.spark.pipelines.plan import start_of
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec, SourceSpec
from korvet.spark.pipelines.state import SourcePosition, StateDirectory, dead_letters_of, location, merged
from korvet.spark.pipelines.targets import ParquetTarget


class ResetPartition(NamedTuple):
    """A partition of a source: the next offset `before` the reset, None if it was read of no such topic, and after."""

    source: str
    topic: str
    partition: int
    before: int | None
    after: int

    @property
    def skipped(self) -> int:
        """How many offsets will not be read."""
        return 0 if self.before is None else max(self.after - self.before, 0)

    @property
    def again(self) -> int:
        """How many offsets will be read again."""
        return 0 if self.before is None else max(self.before - self.after, 0)


class PipelineReset:
    """A reset that is planned: where each source goes on, and what the user has to know of the target."""

    def __init__(
        self,
        session: SparkSession,
        place: LakeSource,
        spec: PipelineSpec,
        to: str | Mapping[tuple[str, int], int],
    ) -> None:
        """Plan to go on at `to`: earliest, latest, a time of ISO 8601, or offsets of some partitions.

        Partitions that have no offset in it stay where they are. An offset outside the log becomes the nearest one
        inside. Raises PipelineError for a pipeline that has not run, or a partition that it does not read.
        """
        self._state = StateDirectory(session, place.lake.path, spec.name)
        self._spec = spec
        begun = self._state.begun()
        if begun is None:
            raise PipelineError(
                f"pipeline {spec.name} has not run yet: `starting` of its sources says where it begins"
            )
        if spec.target.type == "parquet":
            where = location(place.lake.path, spec.target.path or "")
            ParquetTarget(session, spec.target, where, begun=False).check_new()
        self._keeps_state = bool(begun.state)
        self._is_level = True
        """Whether all that was written is before the offsets shown: not after a crash."""
        order = [name for name, _ in begun.sources]
        self.partitions: list[ResetPartition] = []
        self._starts: dict[str, SourcePosition] = {}
        for name, source in spec.sources.items():
            before = self._before(order, name)
            self._starts[name] = after = (
                _start(place, source, to) if isinstance(to, str) else kept(place, source, before, to)
            )
            for topic, position in after.topics.items():
                known = before.topics.get(topic, QueryPosition("", {}))
                offsets = known.offsets if known.id == position.id else {}
                self.partitions += [
                    ResetPartition(name, topic, partition, offsets.get(partition), offset)
                    for partition, offset in position.offsets.items()
                ]
        if not isinstance(to, str):
            _check_read(spec, to, self.partitions)

    def _before(self, order: Sequence[str], source: str) -> SourcePosition:
        """Return what all queries of a source that have begun have surely read."""
        read = self._committed(MAIN, order, source)
        if not read and (start := self._state.start(source)) is not None:
            read = [msgspec.json.decode(start, type=SourcePosition)]
        read += self._committed(dead_letters_of(source), [source], source)
        self._is_level &= all(position == read[0] for position in read)
        return reduce(partial(merged, min), read) if read else SourcePosition({})

    def _committed(self, query: str, order: Sequence[str], source: str) -> list[SourcePosition]:
        progress = self._state.progress(query, order, committed=True)
        if progress is None:
            return []
        self._is_level &= progress.committed
        return [position for name, position in progress.positions if name == source]

    def notes(self) -> list[str]:
        """Return what a reset does to the target besides: one sentence each."""
        target, again = self._spec.target, any(partition.again for partition in self.partitions)
        lines = []
        if not self._is_level:
            lines.append(
                "The last run was not stopped in order: rows of records from these offsets on may be written already."
            )
        if self._keeps_state:
            lines.append("Aggregates, joins and deduplication begin without what they have kept.")
        if again and target.mode == "merge":
            lines.append("Rows of records that are read again replace those of their keys.")
        elif again and target.mode == "overwrite":
            lines.append("Partitions of rows that are read again have only these rows afterwards.")
        elif again:
            lines.append("Rows of records that are read again are appended once more.")
        if again and self._spec.has_dead_letters:
            lines.append("Dead letters that are read again are appended once more.")
        return lines

    def execute(self) -> dict[str, QueryPosition]:
        """Let the pipeline go on there when it is started; return the positions by topic."""
        self._state.reset(self._starts)
        return {topic: offsets for start in self._starts.values() for topic, offsets in start.topics.items()}


def kept(
    place: LakeSource, source: SourceSpec, before: SourcePosition, to: Mapping[tuple[str, int], int]
) -> SourcePosition:
    """Return the offsets in `to`, those of `before` for other partitions, each the nearest one in the log as it is now.

    Partitions that neither has, and topics that were re-created, are at their start. Raises PipelineError.
    """
    first, end = (_start(place, source, edge) for edge in ("earliest", "latest"))
    topics = {}
    for topic, least in first.topics.items():
        known = before.topics.get(topic, least)
        # Offsets of a topic that was deleted mean nothing in the one that has its name.
        offsets = known.offsets if known.id == least.id else {}
        ends = end.topics.get(topic, least).offsets
        topics[topic] = QueryPosition(
            least.id,
            {
                partition: min(
                    max(to.get((topic, partition), offsets.get(partition, start)), start),
                    ends.get(partition, start),
                )
                for partition, start in least.offsets.items()
            },
        )
    return SourcePosition(topics)


def _start(place: LakeSource, source: SourceSpec, to: str) -> SourcePosition:
    text = start_of(place, msgspec.structs.replace(source, starting=to))
    return msgspec.json.decode(text, type=SourcePosition)


def _check_read(
    spec: PipelineSpec, to: Mapping[tuple[str, int], int], partitions: Sequence[ResetPartition]
) -> None:
    unknown = sorted(to.keys() - {(item.topic, item.partition) for item in partitions})
    if unknown:
        topic, partition = unknown[0]
        raise PipelineError(f"pipeline {spec.name} reads no partition {topic}:{partition}")
