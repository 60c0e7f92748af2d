"""Which stream a read has to ask: the log itself, or the one that holds its compacted part.

Knows what the last answers said of each log; a log that was never compacted costs a look-up in a dict. What it believes
may be out of date, so the state that comes with an answer tells whether the right stream was asked.
"""

from __future__ import annotations

from typing import NamedTuple

from korvet.storage.log_replies import State
from korvet.storage.log_types import Partition

_REMEMBERED_MAX = 100_000
"""Logs with a compacted part that are remembered; all are forgotten beyond it, at the price of a second read each."""


class _Part(NamedTuple):
    """The compacted part of a log: everything below `end`, in `stream`."""

    stream: str
    end: int


class CleanParts:
    """The compacted parts of the logs that one store reads."""

    def __init__(self) -> None:
        # By topic id too: what is known of a topic means nothing for the next one of its name.
        self._parts: dict[tuple[str, str], _Part] = {}

    def stream(self, partition: Partition, offset: int) -> str:
        """Return the stream in which `offset` lies, as far as is known."""
        if not self._parts:
            return partition.stream
        part = self._parts.get((partition.stream, partition.topic_id))
        return part.stream if part is not None and offset < part.end else partition.stream

    def learn(self, partition: Partition, offset: int, state: State) -> str:
        """Return the stream in which `offset` lies by the state that came with an answer, and remember that."""
        if state.clean is None:
            if self._parts:
                self._parts.pop((partition.stream, partition.topic_id), None)
            return partition.stream
        if len(self._parts) >= _REMEMBERED_MAX:
            self._parts.clear()
        part = _Part(partition.clean[state.clean], state.clean_end)
        self._parts[partition.stream, partition.topic_id] = part
        return part.stream if offset < part.end else partition.stream
