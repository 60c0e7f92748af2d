"""Topologies as tests write them."""

from __future__ import annotations

from korvet.groups.streams.types import InternalTopic, StreamsTopology, Subtopology


def internal(name: str, partitions: int = 0) -> InternalTopic:
    return InternalTopic(name, partitions, 0, ())


def subtopology(
    name: str,
    *sources: str,
    sinks: tuple[str, ...] = (),
    reads: tuple[InternalTopic, ...] = (),
    changelogs: tuple[str, ...] = (),
    copartitioned: tuple[tuple[str, ...], ...] = (),
) -> Subtopology:
    return Subtopology(name, sources, sinks, reads, tuple(map(internal, changelogs)), copartitioned)


def topology(*subtopologies: Subtopology, epoch: int = 0) -> StreamsTopology:
    return StreamsTopology(epoch, subtopologies)


WORD_COUNT = topology(
    subtopology("0", "lines", sinks=("by-word",)),
    subtopology("1", reads=(internal("by-word"),), changelogs=("counts-changelog",)),
)
"""Splits lines into words, and counts these."""
