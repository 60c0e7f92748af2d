"""From a topology and the topics that there are to partitions of internal topics and numbers of tasks. Pure.

A subtopology has as many tasks as the largest topic that it reads from has partitions, and its changelogs have that
many partitions. A repartition topic whose number of partitions the application does not fix has as many as the largest
topic that writes to it, or as the topics with which it is joined. Kafka's rules (its InternalTopicManager) are
the measure, and its sentences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.streams.types import (
    ConfiguredTopology,
    GroupStatus,
    InternalTopic,
    StreamsTopology,
    Subtopology,
    is_plain,
)

SUBTOPOLOGIES_MAX = 1000
"""Subtopologies of a topology: an application has some tens at the most."""

TASKS_MAX = 100_000
"""Tasks of a group: as many as ten of the largest topics have partitions."""

_NAMED_MAX = 3
"""Topics that a sentence names."""


class _UnsuitableError(Exception):
    """Topics exist with other numbers of partitions than the topology needs."""


def check(topology: StreamsTopology) -> None:
    """Raise KafkaError STREAMS_INVALID_TOPOLOGY for a topology that no topics can suit."""
    if len(topology.subtopologies) > SUBTOPOLOGIES_MAX:
        raise _invalid(f"A topology may have {SUBTOPOLOGIES_MAX} subtopologies.")
    for subtopology in topology.subtopologies:
        if not is_plain(subtopology.id):
            raise _invalid("A subtopology id may have no quote, backslash or control character.")
        for topic in subtopology.changelogs:
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count,"
                    f" but it is set to {topic.partitions}."
                )
        if not subtopology.inputs:
            raise _invalid(f"No source topics found for subtopology {subtopology.id}")
    # What cannot be resolved with all topics cannot be resolved with some.
    _repartition(topology, dict.fromkeys(topology.sources, 1))


def configure(topology: StreamsTopology, existing: Mapping[str, int]) -> ConfiguredTopology:
    """Return the topology by the topics that exist, of which this is the number of partitions each has.

    Raises KafkaError STREAMS_INVALID_TOPOLOGY.
    """
    missing_sources = sorted(topology.sources - existing.keys())
    if missing_sources:
        detail = f"Source topics {_named(missing_sources)} are missing."
        return ConfiguredTopology({}, {}, [], GroupStatus.MISSING_SOURCE_TOPICS, detail)
    try:
        counts = _repartition(topology, existing)
        _copartition(topology, existing, counts)
        tasks = {
            subtopology.id: max(existing.get(name, counts.get(name, 0)) for name in subtopology.inputs)
            for subtopology in topology.subtopologies
        }
        if sum(tasks.values()) > TASKS_MAX:
            raise _invalid(f"A topology may have {TASKS_MAX} tasks.")
        internal = _internal_topics(topology, counts, tasks)
        _check_existing(internal, existing)
    except _UnsuitableError as error:
        return ConfiguredTopology({}, {}, [], GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, str(error))
    missing = [topic for name, topic in sorted(internal.items()) if name not in existing]
    if missing:
        detail = f"Internal topics are missing: {_named([package.name for package in missing])}"
        return ConfiguredTopology({}, internal, missing, GroupStatus.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(tasks, internal, [])


def _internal_topics(
    topology: StreamsTopology, counts: Mapping[str, int], tasks: Mapping[str, int]
) -> dict[str, InternalTopic]:
    repartition = {
        topic.name: replace(topic, partitions=topic.partitions or counts[topic.name])
        for subtopology in topology.subtopologies
        for topic in subtopology.repartition_sources
    }
    changelogs = {
        topic.name: replace(topic, partitions=tasks[subtopology.id])
        for subtopology in topology.subtopologies
        for topic in subtopology.changelogs
    }
    return repartition | changelogs


def _check_existing(internal: Mapping[str, InternalTopic], existing: Mapping[str, int]) -> None:
    for topic in internal.values():
        result = existing.get(topic.name, topic.partitions)
        if result != topic.partitions:
            raise _UnsuitableError(
                f"Existing topic {topic.name} has different number of partitions:"
                f" expected {topic.partitions}, found {result}"
            )


def _repartition(topology: StreamsTopology, existing: Mapping[str, int]) -> dict[str, int]:
    """Return the number of partitions of each repartition topic."""
    repartition = [topic for item in topology.subtopologies for topic in item.repartition_sources]
    counts = {topic.name: topic.partitions for topic in repartition if topic.partitions}
    readers: dict[str, list[Subtopology]] = {}
    for subtopology in topology.subtopologies:
        for topic in subtopology.repartition_sources:
            readers.setdefault(topic.name, []).append(subtopology)
    # Once each, and again when another topic that it reads from is decided.
    waiting = deque(topology.subtopologies)
    while waiting:
        subtopology = waiting.popleft()
        known = [counts[topic.name] for topic in subtopology.repartition_sources if topic.name in counts]
        known += [existing[name] for name in subtopology.sources if name in existing]
        undecided = [name for name in subtopology.repartition_sinks if name not in counts]
        if known and undecided:
            counts |= dict.fromkeys(undecided, max(known))
            waiting += (reader for name in undecided for reader in readers.get(name, ()))
    if any(name not in counts for item in topology.subtopologies for name in item.repartition_sinks):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics."
            " There may be loops in the topology that cannot be resolved."
        )
    if any(topic.name not in counts for topic in repartition):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because"
            " a repartition source topic is never used as a sink topic."
        )
    return counts


def _copartition(topology: StreamsTopology, existing: Mapping[str, int], counts: dict[str, int]) -> None:
    """Give repartition topics as many partitions as the topics that they are joined with."""
    repartition = {
        topic.name: topic.partitions
        for subtopology in topology.subtopologies
        for topic in subtopology.repartition_sources
    }
    for group in (
        group for subtopology in topology.subtopologies for group in subtopology.copartitioned if group
    ):
        result = {name: existing.get(name, counts.get(name, 0)) for name in sorted(group)}
        given = {name: count for name, count in result.items() if name not in repartition}
        fixed = {name: count for name, count in result.items() if repartition.get(name)}
        leading = given or fixed
        if len(set(leading.values())) > 1:
            raise _UnsuitableError(
                f"Following topics do not have the same number of partitions: [{_counted(leading)}]"
            )
        wanted = max((leading or result).values())
        for name, count in fixed.items():
            if count != wanted:
                raise _UnsuitableError(
                    f"Number of partitions [{count}] of repartition topic [{name}]"
                    f" doesn't match number of partitions [{wanted}] of the source topic."
                )
        counts |= {name: wanted for name in result if name in repartition}


def _counted(counts: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}={count}" for name, count in sorted(counts.items())) + "}"


def _named(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{shown} and {more} additional topics" if more > 0 else shown


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
