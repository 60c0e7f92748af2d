"""Archiving what topics hold, and letting Redis forget it."""

from __future__ import annotations

from korvet.topics.types import Partition
from tests.support.archives import Topics


def archive(topics: Topics) -> None:
    """Archive all there is."""
    done = topics.archiver().round(topics.run)
    assert (done.failures, done.more) == ([], False), done


def trim(topics: Topics, partition: Partition) -> None:
    """Let Redis hold nothing of what is archived any more."""
    start = topics.bounds(partition).archived
    topics.trim(partition, start)
    assert topics.bounds(partition).local_start == start
