"""How near the store is to being full, and what that means for producers: nothing, a throttle, or a refusal.

Knows limits, thresholds and how old a reading may be; nothing of messages or sockets. Nobody but a producer is held
up: to read, to trim and to delete is what ends the shortage. A reading is renewed by the request that finds it old,
beside that request, which does not wait for it; so where nobody produces Redis is not asked. Between two readings
Redis may fill up: it then refuses by itself (`full`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import gevent

from korvet.cluster.disk import Disk
from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.logs import Log
from korvet.redis.server_info import ServerUsage, UsageStore

_log = Log(__name__)

READ_EVERY_SECONDS = 1.0
"""Age from which a reading is renewed."""

READ_EVERY_SECONDS_NEAR = 0.1
"""The same where the store is within NEAR of a throttle: producers may fill what is left within a second."""

NEAR = 0.1

BELIEVED_SECONDS = 5.0
"""An older reading holds nobody up: much may have been deleted since. The one that is due will say."""

ASK_AGAIN_SECONDS = 10.0
"""Pause after a reading that failed: an outage is not made worse, and who may not ask does not ask for ever."""

CALM = 0.05
"""So far below the throttle the shortage counts as over in the log, which else would tell of each to and fro."""

DISK_FREE_BYTES_MIN = 64 * 1024 * 1024
"""Left on the embedded server's disk: what trims and deletes the log is written to the append-only file too."""

REWRITE_PAYS = 1.3
"""An append-only file so many times as large as what the server has in memory shrinks when it is written anew."""

REWRITE_EVERY_SECONDS = 10.0
"""Pause between two such requests."""


class Share(NamedTuple):
    """How much of something is used up, 1.0 is all, and the sentence that says so."""

    used: float
    said: str


class BackpressureState(NamedTuple):
    """What a producer is to bear: a throttle in milliseconds, 0 is none; and why it is refused, "" where it is not."""

    throttle_ms: int
    refusal: str


NOTHING = Share(0.0, "")
NONE = BackpressureState(0, "")


class Thresholds(NamedTuple):
    """Shares from which producers are throttled and refused, and the longest throttle in milliseconds."""

    throttle: float
    refuse: float
    throttle_max_ms: int

    @classmethod
    def of(cls, settings: Settings) -> Thresholds:
        """Take them from the settings."""
        return cls(
            settings.memory_throttle_percent / 100,
            settings.memory_refuse_percent / 100,
            settings.throttle_max_ms,
        )

    def strain(self, share: Share) -> BackpressureState:
        """Return what a share means: from `throttle` on a throttle that grows evenly, from `refuse` on a refusal."""
        if share.used >= self.refuse:
            return BackpressureState(
                self.throttle_max_ms, f"{share.said}: producers are refused until there is room"
            )
        if share.used < self.throttle:
            return NONE
        risen = (share.used - self.throttle) / (self.refuse - self.throttle)
        return BackpressureState(math.ceil(risen * self.throttle_max_ms), "")


def memory_share(usage: ServerUsage) -> Share:
    """Return how much of Redis' memory is used: nothing where it has no limit."""
    if not usage.memory_limit:
        return NOTHING
    said = f"Redis has {usage.memory_used} bytes in memory, and its maxmemory is {usage.memory_limit}"
    return Share(usage.memory_used / usage.memory_limit, said)


def disk_share(used_bytes: int, free_bytes: int, max_bytes: int) -> Share:
    """Return how much is used of what the data directory may have (`max_bytes`, 0 is all) and of its disk."""
    said = (
        f"the disk of the data directory has {free_bytes} bytes left, and {DISK_FREE_BYTES_MIN} are kept free"
    )
    of_disk = Share(DISK_FREE_BYTES_MIN / max(free_bytes, 1), said)
    if not max_bytes:
        return of_disk
    said = f"the data directory has {used_bytes} bytes, and embedded.disk.max.bytes is {max_bytes}"
    return max(of_disk, Share(used_bytes / max_bytes, said))


class Backpressure:
    """The pressure that one worker's producers feel.

    `tell` is given each reading's share of Redis' memory (0.0 without a limit) and whether its policy evicts.
    """

    def __init__(
        self,
        store: UsageStore,
        settings: Settings,
        disk: Disk | None = None,
        tell: Callable[[float, bool], None] = lambda _share, _evicts: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._thresholds = Thresholds.of(settings)
        self._disk, self._disk_max_bytes = disk, settings.embedded_disk_max_bytes
        self._tell, self._clock = tell, clock
        self._strain = NONE
        self._read_at = -math.inf
        self._due = -math.inf
        self._rewrite_at = -math.inf
        self._told = NONE
        self._evicts = False

    def use(self, settings: Settings) -> None:
        """Take over other thresholds; they count from the next reading on."""
        self._thresholds = Thresholds.of(settings)

    def felt(self) -> BackpressureState:
        """Return what a request to produce is to bear now."""
        now = self._clock()
        if now >= self._due:
            # Nobody else begins a reading until this one sets the next moment.
            self._due = math.inf
            if now - self._read_at > BELIEVED_SECONDS:
                self._strain = NONE
            gevent.spawn(self._renew)
        return self._strain

    def full(self) -> int:
        """Take note that Redis refused for want of memory; returns the throttle for who was refused, in ms."""
        if self._due < math.inf:
            self._due = min(self._due, self._clock() + READ_EVERY_SECONDS_NEAR)
        return self._thresholds.throttle_max_ms

    def _renew(self) -> None:
        pause_seconds = ASK_AGAIN_SECONDS
        try:
            pause_seconds = self._read()
        except (StorageUnavailableError, OSError) as error:
            self._strain = NONE
            _log.debug("what the store has left is unknown", reason=str(error))
        finally:
            self._read_at = self._clock()
            self._due = self._read_at + pause_seconds

    def _read(self) -> float:
        """Read and judge; returns the seconds until the next reading."""
        usage = self._store.read()
        memory = memory_share(usage)
        disk, free_bytes = NOTHING, 0
        if self._disk is not None:
            free_bytes = self._disk.free_bytes()
            used_bytes = self._disk.used_bytes() if self._disk_max_bytes else 0
            disk = disk_share(used_bytes, free_bytes, self._disk_max_bytes)
        worst = max(memory, disk)
        self._strain = self._thresholds.strain(worst)
        self._say(worst)
        self._watch_policy(usage.policy)
        self._tell(memory.used, self._evicts)
        if disk.used >= self._thresholds.throttle:
            self._shrink_file(usage, free_bytes)
        near = worst.used >= self._thresholds.throttle - NEAR
        return READ_EVERY_SECONDS_NEAR if near else READ_EVERY_SECONDS

    def _shrink_file(self, usage: ServerUsage, free_bytes: int) -> None:
        """Have the append-only file written anew where it holds much that is gone and both have room meanwhile.

        The server does so by itself only where the file has doubled, and at its limit it grows no more.
        """
        pays = usage.file_bytes > REWRITE_PAYS * usage.memory_used and usage.memory_used < free_bytes
        now = self._clock()
        if pays and not usage.rewriting and now >= self._rewrite_at:
            self._rewrite_at = now + REWRITE_EVERY_SECONDS
            refused = self._store.rewrite_file()
            if refused:
                _log.warning("the append-only file is not written anew", reason=refused)

    def _say(self, share: Share) -> None:
        """Log each worsening, and the end of the shortage."""
        strain = self._strain
        if strain.refusal and not self._told.refusal:
            _log.error("producers are refused", reason=share.said)
            self._told = strain
        elif strain.throttle_ms and not self._told.throttle_ms:
            _log.warning("producers are throttled", reason=share.said)
            self._told = strain
        elif self._told is not NONE and share.used < self._thresholds.throttle - CALM:
            _log.info("producers are held up no more", reason=share.said)
            self._told = NONE

    def _watch_policy(self, policy: str) -> None:
        """Log where the server was told to evict since it was checked at the start, and where it no longer does."""
        evicts = policy not in {"noeviction", ""}
        if evicts and not self._evicts:
            _log.error("Redis deletes topics when memory runs short: set noeviction", maxmemory_policy=policy)
        elif self._evicts and not evicts:
            _log.info("Redis evicts nothing any more", maxmemory_policy=policy)
        self._evicts = evicts
