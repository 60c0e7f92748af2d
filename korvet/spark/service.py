"""The process of a broker that archives: `python -m korvet.spark.service FD` (see korvet.lake.child).

One broker of all on a Redis holds the archiver lease, and archives (see archiver_loop). Without the lease the process
only waits for it: nothing of Arrow, Delta or Spark is imported before. It may be killed at any time, and Java ends with
it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from korvet import logs
from korvet.cluster.leases import LeaseStore
from korvet.config.settings import Settings
from korvet.errors import ConfigError, KafkaError, LakeError, StorageUnavailableError
from korvet.lake.child import ChildConfig
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.keys import Keys

if TYPE_CHECKING:
    from korvet.spark.archiver_loop import ArchiverLoop

_RENEWALS_PER_LEASE = 3

_GIVE_UP_MS_MAX = 1_000
"""How long the end of the process may wait for Redis: without it the lease expires by itself."""

_log = logs.Log(__name__)


class ExitReason(Enum):
    """Why the process ends, or starts over."""

    STOPPED = auto()
    SUPERVISOR_GONE = auto()
    FAILED = auto()
    LEASE_LOST = auto()


ExitReasons = queue.SimpleQueue[ExitReason]


class ArchiverLease:
    """The archiver lease of all brokers on a Redis, renewed in a thread of its own.

    Two that archive at once would only do the work twice: no commit depends on the lease.
    """

    def __init__(self, settings: Settings) -> None:
        self.held = threading.Event()
        """Set once the lease was acquired; it stays set until another broker has it."""
        self._settings = settings
        self._holder = f"{settings.broker_id}:{uuid.uuid4().hex}"

    def keep(self) -> None:
        """Acquire the lease as soon as it is free, and renew it; returns when another broker has it."""
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
                    _log.info("acquired the archiver lease")
                    self.held.set()
            time.sleep(ttl_ms / 1000 / _RENEWALS_PER_LEASE)

    def release(self) -> None:
        """Let another broker archive at once, if Redis answers soon."""
        if self.held.is_set():
            with contextlib.suppress(StorageUnavailableError):
                self._store(_GIVE_UP_MS_MAX).release(self._holder)

    def _store(self, timeout_ms: int) -> LeaseStore:
        """Return a store for the calling thread: a connection belongs to one."""
        settings = self._settings
        connect_ms = min(settings.redis_connect_timeout_ms, timeout_ms)
        redis = blocking_redis(settings.redis_url, timeout_ms=timeout_ms, connect_timeout_ms=connect_ms)
        keys = Keys(settings.namespace)
        return LeaseStore(redis, keys.archiver_lease, keys.archiver_fence)


class ArchiverProcess:
    """The threads of the process, and why it ends."""

    def __init__(self, configuration: ChildConfig, ends: ExitReasons) -> None:
        self._configuration = configuration
        self._ends = ends
        self._closing = False
        self._lease = ArchiverLease(configuration.settings)
        self._loop: ArchiverLoop | None = None

    def run(self) -> ExitReason:
        """Archive while the lease is held; returns when the process has to end, or to start over."""
        self._spawn(self._lease.keep, ExitReason.LEASE_LOST)
        self._spawn(self._configuration.wait_for_end_of_supervisor, ExitReason.SUPERVISOR_GONE)
        self._spawn(self._archive, None)
        self._configuration.report_ready()
        return self._ends.get()

    def close(self) -> None:
        """Release the lease and end Java; what Spark was doing counts only if it was committed."""
        self._closing = True
        self._lease.release()
        if self._loop is not None:
            self._loop.close()

    def _archive(self) -> None:
        self._lease.held.wait()
        from korvet.spark.archiver_loop import ArchiverLoop  # noqa: PLC0415 - not before this broker is the one that archives

        configuration = self._configuration
        self._loop = ArchiverLoop(configuration.settings, Path(configuration.path))
        for work in self._loop.works():
            self._spawn(work, ExitReason.FAILED)

    def _spawn(self, work: Callable[[], None], end: ExitReason | None) -> None:
        threading.Thread(target=self._guarded, args=(work, end), daemon=True).start()

    def _guarded(self, work: Callable[[], None], end: ExitReason | None) -> None:
        """Run the work of a thread; `end` is the reason to exit if it returns, None for none."""
        try:
            work()
        except (ConfigError, KafkaError, LakeError) as error:
            end = ExitReason.FAILED
            if not self._closing:
                _log.error("cannot continue", reason=error)
        except BaseException:  # noqa: BLE001 - the boundary of a thread: logged once, then the process ends
            end = ExitReason.FAILED
            if not self._closing:
                _log.exception("unexpected error")
        if end is not None:
            self._ends.put(end)


def main() -> NoReturn:
    """Archive until the supervisor is gone, or SIGTERM; a lost lease starts the program over, without Spark."""
    config_fd = int(sys.argv[1])
    configuration = ChildConfig.read(config_fd)
    logs.configure(configuration.settings, "archiver")
    ends: ExitReasons = queue.SimpleQueue()
    # Only this thread runs Python's handlers, and it does nothing that one could interrupt.
    signal.signal(signal.SIGTERM, lambda *_: ends.put(ExitReason.STOPPED))
    service = ArchiverProcess(configuration, ends)
    end = service.run()
    service.close()
    if end is ExitReason.LEASE_LOST:
        _log.warning("another broker has acquired the archiver lease")
        for fd in (configuration.note_fd, configuration.life_fd, config_fd):
            os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
        os.execv(sys.executable, [sys.executable, "-m", "korvet.spark.service", str(config_fd)])  # noqa: S606 - itself
    # Threads of Arrow and of Spark may be running: nothing waits for them.
    sys.stderr.flush()
    os._exit(1 if end is ExitReason.FAILED else 0)


if __name__ == "__main__":
    main()
