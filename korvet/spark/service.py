"""The process of a broker that archives: `python -m korvet.spark.service FD`.

Knows the lease that lets one broker of all on a Redis archive, and how the process ends; what an archiver does stands
in `acting`. Without the lease it only waits for it: nothing of Arrow, Delta or Spark is imported before. It is started
as a new program, not forked, for none of them survives a fork; the descriptor FD holds its configuration as JSON. It
may be killed at any time, and Java ends with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import gevent
import msgspec

from korvet import logs
from korvet.cluster.leases import LeaseStore
from korvet.config.settings import Settings
from korvet.errors import ConfigError, KafkaError, LakeError, StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

if TYPE_CHECKING:
    from korvet.spark.archiver_loop import ArchiverLoop

_RENEWALS_PER_LEASE = 3

_GIVE_UP_MS_MAX = 1_000
"""How long the end of the process may wait for Redis: without it the lease runs out by itself."""

_log = logs.Log(__name__)


class ArchiverConfig(msgspec.Struct, frozen=True):
    """What the process is told; it leaves figures for /metrics in `directory`.

    It writes `ready` to `note_fd` once it is there, and ends once `life_fd` reads end-of-file.
    """

    settings: Settings
    directory: str
    life_fd: int
    note_fd: int
    ready: bytes


class ExitReason(Enum):
    """Why the process ends, or starts over."""

    TOLD = auto()
    SUPERVISOR_GONE = auto()
    FAILED = auto()
    LEASE_LOST = auto()


ExitReasons = queue.SimpleQueue[ExitReason]


class ArchiverLease:
    """The claim of this process to be the one that archives, renewed in a thread of its own.

    Two that archive at once would only do the work twice: no commit hangs on who holds the lease.
    """

    def __init__(self, settings: Settings) -> None:
        self.held = threading.Event()
        """Set once it was given; it stays set until somebody else has it."""
        self._settings = settings
        self._holder = f"{settings.broker_id}:{uuid.uuid4().hex}"

    def keep(self) -> None:
        """Take it as soon as it is free, and keep it; returns when somebody else has it."""
        store = self._store(self._settings.redis_timeout_ms)
        ttl_ms = self._settings.keeper_lease_ms
        away = False
        while True:
            try:
                holds = store.acquire(self._holder, ttl_ms) is not None
            except StorageUnavailableError as error:
                if not away:
                    _log.warning("cannot reach Redis", reason=error)
                away = True
            else:
                away = False
                if self.held.is_set() and not holds:
                    return
                if holds and not self.held.is_set():
                    _log.info("archives for all brokers on this Redis")
                    self.held.set()
            gevent.sleep(ttl_ms / 1000 / _RENEWALS_PER_LEASE)

    def give_up(self) -> None:
        """Let another broker archive at once, where Redis takes that soon."""
        if self.held.is_set():
            with contextlib.suppress(StorageUnavailableError):
                self._store(_GIVE_UP_MS_MAX).release(self._holder)

    def _store(self, timeout_ms: int) -> LeaseStore:
        """Return a store for the thread that asks for it: connections stay in one."""
        settings = self._settings
        connect_ms = min(settings.redis_connect_timeout_ms, timeout_ms)
        redis = Redis(settings.redis_url, timeout_ms=timeout_ms, connect_timeout_ms=connect_ms)
        keys = Keys(settings.namespace)
        return LeaseStore(redis, keys.archiver_lease, keys.archiver_fence)


class ArchiverProcess:
    """The threads of the process, and what they come to."""

    def __init__(self, configuration: ArchiverConfig, ends: ExitReasons) -> None:
        self._configuration = configuration
        self._ends = ends
        self._closing = False
        self._lease = ArchiverLease(configuration.settings)
        self._acting: ArchiverLoop | None = None

    def run(self) -> ExitReason:
        """Archive as long as the lease is held; returns when the process is to end, or to starts over."""
        self._spawn(self._lease.keep, ExitReason.LEASE_LOST)
        self._spawn(self._watch_supervisor, ExitReason.SUPERVISOR_GONE)
        self._spawn(self._act, None)
        os.write(self._configuration.note_fd, self._configuration.ready)
        return self._ends.get()

    def close(self) -> None:
        """Give up the lease and end Java; what Spark was doing counts only where it was committed."""
        self._closing = True
        self._lease.give_up()
        if self._acting is not None:
            self._acting.close()

    def _act(self) -> None:
        self._lease.held.wait()
        from korvet.spark.archiver_loop import ArchiverLoop  # noqa: PLC0415 - not before this broker is the one that archives

        configuration = self._configuration
        self._acting = ArchiverLoop(configuration.settings, Path(configuration.directory))
        for work in self._acting.works():
            self._spawn(work, ExitReason.FAILED)

    def _watch_supervisor(self) -> None:
        # Nobody writes to the pipe: reading it returns when its other end is gone.
        os.read(self._configuration.life_fd, 1)

    def _spawn(self, work: Callable[[], None], end: ExitReason | None) -> None:
        threading.Thread(target=self._guarded, args=(work, end), daemon=True).start()

    def _guarded(self, work: Callable[[], None], end: ExitReason | None) -> None:
        """Do something; `end` is what its return means for the process, None for nothing."""
        try:
            work()
        except (ConfigError, KafkaError, LakeError) as error:
            end = ExitReason.FAILED
            if not self._closing:
                _log.error("cannot go on", reason=error)
        except BaseException:  # noqa: BLE001 - the boundary of a thread: logged once, then the process ends
            end = ExitReason.FAILED
            if not self._closing:
                _log.exception("ended by a fault")
        if end is not None:
            self._ends.put(end)


def main() -> NoReturn:
    """Archive until the supervisor is gone, or SIGTERM; a lost lease begins the program again, without Spark."""
    told_fd = int(sys.argv[1])
    told = os.pread(told_fd, os.fstat(told_fd).st_size, 0)
    configuration = msgspec.json.decode(told, type=ArchiverConfig)
    logs.configure(configuration.settings, "archiver")
    ends: ExitReasons = queue.SimpleQueue()
    # Only this thread runs Python's handlers, and it does nothing else that one could interrupt.
    signal.signal(signal.SIGTERM, lambda *_: ends.put(ExitReason.TOLD))
    service = ArchiverProcess(configuration, ends)
    end = service.run()
    service.close()
    if end is ExitReason.LEASE_LOST:
        _log.warning("another broker archives now")
        ready = {configuration.note_fd, configuration.life_fd, told_fd}
        for fd in ready:
            os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
        os.execv(sys.executable, [sys.executable, "-m", "korvet.spark.service", str(told_fd)])  # noqa: S606 - itself
    # Threads of Arrow and of Spark may be at work: nothing waits for them.
    sys.stderr.flush()
    os._exit(1 if end is ExitReason.FAILED else 0)


if __name__ == "__main__":
    main()
