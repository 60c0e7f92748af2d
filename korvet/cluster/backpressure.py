"""Backpressure: how full the store is, and what follows for producers: nothing, a throttle, or a refusal.

Each node of a cluster is judged by itself, and refuses only what would be written to it. A refusal by one throttles
nobody: a throttle is for a connection, which may write to other nodes too.

Only producers are affected: reading, trimming and deleting is what ends the shortage. A request that
finds the reading old renews it beside its own work, without waiting; without producers Redis is not asked.
Between two readings Redis may fill up: it then refuses by itself (`memory_full`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from korvet_core import DataPath

from korvet.clock import CLOCK, Clock
from korvet.cluster.usage import UNUSED, Disk, ServerUsage, Share, UsageStore, disk_share, memory_share
from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.logs import Log
from korvet.redis.client import Redis
from korvet.telemetry import metrics

_log = Log(__name__)

READ_EVERY_SECONDS = 1.0
"""Age from which a reading is renewed."""

READ_EVERY_SECONDS_NEAR = 0.1
"""The same if the store is within NEAR of a throttle: producers may fill the rest within a second."""

NEAR = 0.1

VALID_SECONDS = 5.0
"""An older reading affects nobody: much may have been deleted since, and a new reading is due."""

PAUSE_SECONDS_FAILED = 10.0
"""Pause after a reading that failed: an outage is not made worse."""

CALM = 0.05
"""Below the throttle by this share the shortage counts as over in the log, which would repeat itself otherwise."""

REWRITE_PAYS = 1.3
"""An append-only file larger than the server's memory by this factor shrinks when it is rewritten."""

REWRITE_EVERY_SECONDS = 10.0
"""Pause between two such requests."""


class BackpressureState(NamedTuple):
    """What applies to a producer: a throttle in milliseconds, 0 is none; and why it is refused, "" if it is not."""

    throttle_ms: int
    refusal: str


NO_PRESSURE = BackpressureState(0, "")


class Thresholds(NamedTuple):
    """Shares from which producers are throttled and refused, and the longest throttle in milliseconds."""

    throttle: float
    refuse: float
    throttle_max_ms: int

    @classmethod
    def of(cls, settings: Settings) -> Thresholds:
        return cls(
            settings.memory_throttle_percent / 100,
            settings.memory_refuse_percent / 100,
            settings.throttle_max_ms,
        )

    def state(self, share: Share) -> BackpressureState:
        """Return what follows from a share: an evenly growing throttle from `throttle`, a refusal from `refuse` on."""
        if share.used >= self.refuse:
            return BackpressureState(
                self.throttle_max_ms, f"{share.reason}: producers are refused until there is room"
            )
        if share.used < self.throttle:
            return NO_PRESSURE
        risen = (share.used - self.throttle) / (self.refuse - self.throttle)
        return BackpressureState(math.ceil(risen * self.throttle_max_ms), "")


class Backpressure:
    """The backpressure on one worker's producers, by the numbers of Redis' nodes."""

    def __init__(
        self, redis: Redis, settings: Settings, data_dir: Path | None = None, *, clock: Clock = CLOCK
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._settings = settings
        self._data_dir = data_dir
        self._nodes: dict[int, ServerBackpressure] = {}
        self._map_version = redis.map_version
        self._core: DataPath[Any] | None = None

    def report_to(self, core: DataPath[Any]) -> None:
        """Report to the core what follows for producers, now and after each reading."""
        self._core = core
        core.set_full_throttle(self.full_throttle_ms)

    @property
    def full_throttle_ms(self) -> int:
        """For how long a producer is throttled whose batch Redis refused for want of memory."""
        # That of one node throttles nobody: a producer may write to others too.
        return 0 if self._redis.is_cluster else Thresholds.of(self._settings).throttle_max_ms

    def use(self, settings: Settings) -> None:
        """Apply other thresholds, from the next reading on."""
        self._settings = settings
        for node in self._nodes.values():
            node.use(settings)
        if self._core is not None:
            self.report_to(self._core)

    def look(self, number: int, *, is_full: bool = False) -> BackpressureState:
        """Have a node read that is written to, if that is due; sooner if it `is_full`: it has refused a write.

        Returns what applies until then.
        """
        self._forget_former()
        server = self._nodes.get(number) or self._made(number)
        return server.memory_full() if is_full else server.check()

    def _made(self, number: int) -> ServerBackpressure:
        redis, settings, clock = self._redis, self._settings, self._clock
        if not redis.is_cluster:
            usage = UsageStore(redis, with_file=self._data_dir is not None)
            disk = Disk(self._data_dir) if self._data_dir else None
            made = ServerBackpressure(usage, settings, disk, clock=clock)
        else:
            node = redis.node_numbered(number)
            usage = UsageStore(node, with_file=False)
            made = ServerBackpressure(usage, settings, name=node.name, clock=clock)
        made.reported = number, self
        self._nodes[number] = made
        return made

    def _forget_former(self) -> None:
        if self._map_version != self._redis.map_version:
            self._map_version = self._redis.map_version
            for former in self._nodes.keys() - {node.number for node in self._redis.nodes()}:
                self._nodes.pop(former).forget()

    def take(self, number: int, state: BackpressureState, due: float, until: float) -> None:
        """Take a reading of a node, when the next one is due, and until when this one counts (monotonic)."""
        if self._core is not None:
            # A throttle is for a connection, which may write to other nodes too.
            throttle_ms = 0 if self._redis.is_cluster and state.refusal else state.throttle_ms
            self._core.put_pressure(number, throttle_ms, state.refusal or None, due, until)


class ServerBackpressure:
    """What one server puts on the producers that write to it."""

    def __init__(
        self,
        store: UsageStore,
        settings: Settings,
        disk: Disk | None = None,
        name: str = "",
        *,
        clock: Clock = CLOCK,
    ) -> None:
        self.reported: tuple[int, Backpressure] | None = None
        """The number of the server, and who gets its readings."""
        self._name = name
        self._store = store
        self._thresholds = Thresholds.of(settings)
        self._disk, self._disk_max_bytes = disk, settings.embedded_disk_max_bytes
        self._clock = clock
        self._state = NO_PRESSURE
        self._read_at = -math.inf
        self._due = -math.inf
        self._rewrite_at = -math.inf
        # How many rewrites must have begun until one of them began after the last write that failed.
        self._rewrites_wanted: int | None = None
        self._logged = NO_PRESSURE
        self._evicts = False
        self._has_left = False

    def use(self, settings: Settings) -> None:
        self._thresholds = Thresholds.of(settings)

    def check(self) -> BackpressureState:
        """Return what applies to a produce request now."""
        now = self._clock.monotonic()
        if now >= self._due:
            # No other request begins a reading until this one sets the next moment.
            self._due = math.inf
            if now - self._read_at > VALID_SECONDS:
                self._state = NO_PRESSURE
            self._clock.spawn(self._renew)
        return self._state

    def memory_full(self) -> BackpressureState:
        """Have the usage read soon, because Redis refused for want of memory; returns what applies until then."""
        if self._due < math.inf:
            self._due = min(self._due, self._clock.monotonic() + READ_EVERY_SECONDS_NEAR)
            self._say()
        return self._state

    def forget(self) -> None:
        """Report the server as no trouble from now on: it left the cluster."""
        self._has_left = True
        self._report(UNUSED)

    def _renew(self) -> None:
        pause_seconds = PAUSE_SECONDS_FAILED
        try:
            pause_seconds = self._read()
        except (StorageUnavailableError, OSError) as error:
            self._state = NO_PRESSURE
            _log.debug("cannot read how full the store is", reason=str(error))
        finally:
            self._read_at = self._clock.monotonic()
            self._due = self._read_at + pause_seconds
            self._say()

    def _say(self) -> None:
        if self.reported is not None:
            number, pressure = self.reported
            pressure.take(number, self._state, self._due, self._read_at + VALID_SECONDS)

    def _read(self) -> float:
        """Read and judge; returns the seconds until the next reading."""
        usage = self._store.read()
        memory = memory_share(usage, self._name or "Redis")
        disk, free_bytes = UNUSED, 0
        if self._disk is not None:
            free_bytes = self._disk.free_bytes()
            used_bytes = self._disk.used_bytes() if self._disk_max_bytes else 0
            disk = disk_share(used_bytes, free_bytes, self._disk_max_bytes)
            metrics.EMBEDDED_DISK_USED_RATIO.set(disk.used)
        worst = max(memory, disk)
        self._state = self._thresholds.state(worst)
        self._log_change(worst)
        self._watch_policy(usage.policy)
        self._report(memory)
        self._watch_file(usage)
        if disk.used >= self._thresholds.throttle:
            self._rewrite_file(usage, free_bytes)
        near = worst.used >= self._thresholds.throttle - NEAR
        return READ_EVERY_SECONDS_NEAR if near else READ_EVERY_SECONDS

    def _report(self, memory: Share) -> None:
        # A reading may end after the server has left.
        metrics.REDIS_MEMORY_USED_RATIO.labels(self._name).set(0 if self._has_left else memory.used)
        metrics.REDIS_EVICTS.labels(self._name).set(self._evicts and not self._has_left)

    def _rewrite_file(self, usage: ServerUsage, free_bytes: int) -> None:
        """Have the append-only file rewritten if it holds much that is gone and there is room for both meanwhile.

        The server does so by itself only when the file has doubled, and at its limit it grows no more.
        """
        pays = usage.file_bytes > REWRITE_PAYS * usage.memory_used and usage.memory_used < free_bytes
        now = self._clock.monotonic()
        if pays and not usage.rewriting and now >= self._rewrite_at:
            self._rewrite_at = now + REWRITE_EVERY_SECONDS
            refused = self._store.rewrite_file()
            if refused:
                _log.warning("the append-only file is not rewritten", reason=refused)

    def _watch_file(self, usage: ServerUsage) -> None:
        """Have the append-only file rewritten once it takes writes again after one failed.

        A write that the disk took in part leaves zeros in a file that the server has begun by a rewrite: it cuts the
        part off, but goes on writing where that ended. It would not start with such a file (Valkey 9.1). A rewrite that
        was under way then has begun this very file, and one that fails leaves it in use: neither counts.
        """
        if usage.write_failed:
            self._rewrites_wanted = usage.rewrites + 1
        now = self._clock.monotonic()
        wanted = self._rewrites_wanted
        if wanted is None or usage.write_failed or usage.rewriting or now < self._rewrite_at:
            return
        if usage.rewrites >= wanted and not usage.rewrite_failed:
            self._rewrites_wanted = None
            return
        self._rewrite_at = now + REWRITE_EVERY_SECONDS
        refused = self._store.rewrite_file()
        if refused:
            _log.error("the append-only file may be damaged, and is not rewritten", reason=refused)
        else:
            _log.warning("the append-only file is rewritten, since writes to it failed")

    def _log_change(self, share: Share) -> None:
        """Log each worsening, and the end of the shortage."""
        state = self._state
        if state.refusal and not self._logged.refusal:
            _log.error("producers are refused", reason=share.reason)
            self._logged = state
        elif state.throttle_ms and not self._logged.throttle_ms:
            _log.warning("producers are throttled", reason=share.reason)
            self._logged = state
        elif self._logged is not NO_PRESSURE and share.used < self._thresholds.throttle - CALM:
            _log.info("producer throttling ended", reason=share.reason)
            self._logged = NO_PRESSURE

    def _watch_policy(self, policy: str) -> None:
        """Log when the server's policy becomes one that evicts since its check at the start, and when it ends."""
        evicts = policy not in {"noeviction", ""}
        if evicts and not self._evicts:
            name = self._name or "Redis"
            _log.error(
                f"{name} deletes topics when memory runs short: set noeviction", maxmemory_policy=policy
            )
        elif self._evicts and not evicts:
            _log.info(f"{self._name or 'Redis'} no longer evicts keys", maxmemory_policy=policy)
        self._evicts = evicts
