"""The log directory that administrators are told of: where the logs lie, how large each is, and how much room is left.

Knows that all brokers share one Redis, and what a size is; nothing of messages. Sizes are those that retention goes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.storage.figures_store import FiguresStore, LogLook
from korvet.storage.log_types import Partition
from korvet.storage.usage_store import UsageStore

_log = Log(__name__)

_LOGS_PER_LOOK = 100
"""Logs asked for in one round trip: some tenths of a ms of Redis, and 2 ms of a worker that has others to serve too."""


class Room(NamedTuple):
    """Bytes that Redis may hold in memory, for everything, and those that are left of them; -1: nobody set a limit."""

    total_bytes: int
    usable_bytes: int


class LogDir:
    """The one log directory of a worker's broker; `place` is its name, without secrets."""

    def __init__(self, place: str, figures: FiguresStore, usage: UsageStore) -> None:
        self.place = place
        self._figures = figures
        self._usage = usage

    def sizes(self, partitions: Sequence[Partition]) -> list[int | None]:
        """Return the bytes of each log as its entries are stored, exact to one row of the index; None where it is gone.

        One round trip for each 100. A log whose state nobody can read counts as gone, with a line in the log. Raises
        StorageUnavailableError.
        """
        sizes: list[int | None] = []
        for at in range(0, len(partitions), _LOGS_PER_LOOK):
            _, looks = self._figures.look(partitions[at : at + _LOGS_PER_LOOK])
            sizes += [_size(look) for look in looks]
        return sizes

    def room(self) -> Room:
        """Return the room there is; unknown where Redis does not tell."""
        try:
            usage = self._usage.read()
        except StorageUnavailableError as error:
            _log.debug("what Redis has left is unknown", reason=str(error))
            return Room(-1, -1)
        if not usage.memory_limit:
            return Room(-1, -1)
        return Room(usage.memory_limit, max(usage.memory_limit - usage.memory_used, 0))


def _size(look: LogLook | KafkaError) -> int | None:
    if isinstance(look, LogLook):
        return look.size_bytes
    if look.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        _log.warning("no size of a log", reason=look)
    return None
