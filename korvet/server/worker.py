"""A worker: one process that serves clients, from its own accept queue to its own connections to Redis.

Knows how a broker is put together and how a worker lives and drains; nothing of requests. It binds a socket of its
own with SO_REUSEPORT after the fork, so that the kernel gives each worker a queue of its own. Nothing is
monkey-patched: greenlets use gevent's sockets and locks by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gevent
import gevent.socket
import msgspec
from gevent.event import Event

from korvet.config import Settings
from korvet.domain.append import Appender
from korvet.domain.cluster import Cluster, Member
from korvet.domain.cold import ColdTier
from korvet.domain.configs import Configs
from korvet.domain.delete_records import RecordDeletion
from korvet.domain.failures import Failures
from korvet.domain.fetch import Fetcher
from korvet.domain.groups.committed import CommittedOffsets
from korvet.domain.groups.listing import GroupListing
from korvet.domain.groups.membership import Groups
from korvet.domain.growth import Growth
from korvet.domain.live_settings import LiveSettings
from korvet.domain.log_dir import LogDir
from korvet.domain.offsets import Offsets
from korvet.domain.placement import Placement
from korvet.domain.pressure import Pressure
from korvet.domain.producers import ActiveProducers, ProducerIds
from korvet.domain.replicas import Replicas
from korvet.domain.retention import Retention
from korvet.domain.topics import Topics, id_text
from korvet.domain.traffic import Traffic
from korvet.domain.trimming import BackgroundTrims, Reason, Trimmer
from korvet.handlers import HANDLERS
from korvet.handlers.handler import Broker
from korvet.logs import Log, set_level
from korvet.server import listeners, metrics, topic_traffic
from korvet.server.acceptor import Acceptor, Door, listen
from korvet.server.dispatch import Dispatcher
from korvet.server.follow import Follower
from korvet.server.redis_tally import REDIS_TALLY
from korvet.server.slot import BEAT_SECONDS, WorkerSlot
from korvet.server.tally import TALLY
from korvet.storage import redis_url
from korvet.storage.broker_config_store import BrokerConfigStore
from korvet.storage.broker_store import BrokerStore
from korvet.storage.cold_store import ColdStore
from korvet.storage.disk import Disk
from korvet.storage.figures_store import FiguresStore
from korvet.storage.group_list import GroupList
from korvet.storage.group_removal import GroupRemoval
from korvet.storage.group_store import GroupStore
from korvet.storage.index_store import IndexStore
from korvet.storage.keys import Keys
from korvet.storage.lake_store import LakeStore
from korvet.storage.log_store import LogStore
from korvet.storage.offset_store import OffsetStore
from korvet.storage.producer_rows import ProducerRows
from korvet.storage.producer_store import ProducerStore
from korvet.storage.replication import Replication
from korvet.storage.resp import Redis
from korvet.storage.subscriptions import Subscriptions
from korvet.storage.topic_store import TopicStore
from korvet.storage.trim_store import TrimStore
from korvet.storage.usage_store import UsageStore

_log = Log(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc

MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Allocations from here on are mapped, and given back when they are freed; glibc takes no larger number."""

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Free memory at the top of the heap beyond this is given back."""

GC_THRESHOLD = 200_000
"""Containers made, beyond those freed, before the collector looks at the young ones."""


class Storage(msgspec.Struct, frozen=True):
    """A worker's connections to Redis: small commands, large replies, waits for replicas, and news of appends."""

    redis: Redis
    reads: Redis
    waits: Redis
    subscriptions: Subscriptions
    lake: ColdStore | None

    @classmethod
    def of(cls, settings: Settings, lake: Path | None) -> Storage:
        """Prepare the connections; each is made at its first use. `lake` is the socket of who reads that."""

        def client(word: str) -> Redis:
            return Redis(
                settings.redis_url,
                timeout_ms=settings.redis_timeout_ms,
                connect_timeout_ms=settings.redis_connect_timeout_ms,
                observer=REDIS_TALLY,
                word=word,
            )

        def renew() -> None:
            # Neither ever writes, so neither is told that it asks a replica.
            for each in (reads, subscriptions):
                each.renew("another Redis is the master now")

        subscriptions = Subscriptions(
            settings.redis_url,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
            linger_ms=settings.subscription_linger_ms,
            observer=REDIS_TALLY,
        )
        redis, reads = client("commands"), client("reads")
        redis.moved = renew
        cold = ColdStore(lake, _saw_lake) if lake else None
        return cls(redis, reads, client("wait"), subscriptions, cold)

    def close(self) -> None:
        """Close all of them."""
        self.subscriptions.close()
        if self.lake is not None:
            self.lake.close()
        self.reads.close()
        self.waits.close()
        self.redis.close()


def main(settings: Settings, slot: WorkerSlot) -> None:
    """Serve clients until SIGTERM, or until the supervisor is gone; then drain and return.

    Raises StorageUnavailableError where Redis is away at the start.
    """
    _raise_descriptor_limit()
    _collect_less()
    _keep_freed_memory()
    stopping = Event()
    gevent.signal_handler(signal.SIGTERM, stopping.set)
    gevent.spawn(_when_supervisor_is_gone, slot.life_fd, stopping.set)
    storage = Storage.of(settings, slot.lake)
    broker = build_broker(settings, storage, slot)
    broker.live.refresh()
    broker.topics.refresh()
    doors = [
        Door(each.name, listen(each.address), Dispatcher(HANDLERS, broker, each.name))
        for each in slot.listeners
    ]
    acceptor = Acceptor(doors, settings)
    broker.live.follow(acceptor.use)
    broker.live.follow(set_level)
    acceptor.start()
    following = gevent.spawn(follower(settings, storage, broker).run)
    traffic_file = topic_traffic.open_own(broker.traffic, TALLY)
    # The supervisor asks by this signal where a loop stands that shows no life.
    faulthandler.register(signal.SIGUSR1)
    gevent.spawn(_beat, slot)
    slot.ready()
    stopping.wait()
    slot.draining()
    if not slot.scoreboard.draining:
        # Another worker is there, or soon will be; where all of the broker ends, there is nobody to leave them to.
        acceptor.leave_to_others()
    acceptor.close()
    broker.fetcher.drain()
    broker.groups.drain()
    cut_off = acceptor.drain(settings.drain_timeout_ms / 1000)
    if cut_off:
        _log.warning("connections cut off at the end of the drain", connections=cut_off)
    following.kill()
    storage.close()
    TALLY.flush()
    if traffic_file is not None:
        traffic_file.close()


def _beat(slot: WorkerSlot) -> None:
    while True:
        slot.beat()
        gevent.sleep(BEAT_SECONDS)


def build_broker(settings: Settings, storage: Storage, slot: WorkerSlot) -> Broker:
    """Put a broker together on `storage`."""
    keys = Keys(settings.namespace)
    log = _log_store(settings, storage, keys)
    broker_configs = BrokerConfigStore(storage.redis, keys)
    live = LiveSettings(settings, broker_configs)
    topics = Topics(TopicStore(storage.redis, keys), settings, log.partition)
    live.follow(topics.settle)
    replication = Replication(
        storage.waits, keys, replicas=settings.replicas, timeout_ms=settings.redis_timeout_ms
    )
    cold = _cold_tier(settings, storage)
    trim_store = TrimStore(storage.redis)
    trimmer = Trimmer(log, trim_store, _count_trimmed)
    background = BackgroundTrims()
    traffic = Traffic()
    growth = Growth(topics, Retention(log, trim_store, trimmer), background)
    group_store = GroupStore(
        storage.redis,
        keys,
        size_max=settings.group_max_size,
        initial_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    this = Member(settings.broker_id, listeners.endpoints(slot.listeners))
    return Broker(
        live=live,
        configs=Configs(topics, live, broker_configs),
        apis=tuple(handler.request.api for _, handler in sorted(HANDLERS.items())),
        cluster=Cluster(settings.cluster_id, this, BrokerStore(storage.redis, keys)),
        topics=topics,
        placement=Placement(topics),
        appender=Appender(log, settings, topics, grown=growth.crossed, traffic=traffic),
        fetcher=Fetcher(log, storage.subscriptions, cold, parked=partial(TALLY.parked, "Fetch")),
        offsets=Offsets(log, IndexStore(storage.redis), cold, settings.record_decompressed_max_bytes),
        deletion=RecordDeletion(log, LakeStore(storage.redis), trimmer, background),
        producer_ids=ProducerIds(ProducerStore(storage.redis, keys)),
        active_producers=ActiveProducers(topics, ProducerRows(storage.reads)),
        log_dir=LogDir(
            redis_url.parse(settings.redis_url).place if slot.data is None else str(slot.data),
            FiguresStore(storage.reads, keys),
            UsageStore(storage.redis, with_file=False),
        ),
        groups=Groups(group_store, storage.subscriptions, settings, keys.group_channel, TALLY.parked),
        committed=CommittedOffsets(
            OffsetStore(storage.redis, keys, mirror=settings.group_mirror), topics, settings
        ),
        group_listing=GroupListing(
            group_store,
            GroupList(storage.redis, keys),
            GroupRemoval(storage.redis, keys, mirror=settings.group_mirror),
            topics,
        ),
        replicas=Replicas(replication),
        pressure=_pressure(live, storage, slot),
        failures=Failures(_count_failure),
        traffic=traffic,
    )


def _log_store(settings: Settings, storage: Storage, keys: Keys) -> LogStore:
    return LogStore(
        storage.redis,
        storage.reads,
        keys,
        decompressed_bytes_max=settings.record_decompressed_max_bytes,
    )


def _saw_lake(kind: str, seconds: float) -> None:
    metrics.LAKE_READ_DURATION.labels(kind).observe(seconds)


def _cold_tier(settings: Settings, storage: Storage) -> ColdTier:
    return ColdTier(
        storage.lake,
        wait_ms=settings.remote_fetch_max_wait_ms,
        timeout_ms=settings.remote_list_offsets_request_timeout_ms,
        count_error=metrics.LAKE_READ_ERRORS.inc,
    )


def _pressure(live: LiveSettings, storage: Storage, slot: WorkerSlot) -> Pressure:
    disk = None if slot.data is None else Disk(slot.data)
    usage = UsageStore(storage.redis, with_file=slot.data is not None)
    pressure = Pressure(usage, live.settings, disk, _tell_memory)
    live.follow(pressure.use)
    return pressure


def follower(settings: Settings, storage: Storage, broker: Broker) -> Follower:
    """Return what lets `broker` see at once what others change in the cluster; its greenlet is to be spawned."""
    keys = Keys(settings.namespace)

    def ask_the_master() -> None:
        # Writes nothing, for the key is absent, but a replica refuses it: a worker that only reads would stay with a
        # master that was replaced, and with what that knew.
        storage.redis.call("UNLINK", keys.probe)

    def exists(name: str, topic_id: str) -> bool:
        topic = broker.topics.known(name)
        return topic is not None and id_text(topic.id) == topic_id

    def forget_deleted() -> None:
        broker.traffic.keep(exists)
        TALLY.flush_soon()

    # Settings before topics, which are made of them.
    looks = [ask_the_master, broker.live.refresh, broker.topics.refresh, forget_deleted]
    return Follower(storage.subscriptions, keys.topics_channel, looks)


def _tell_memory(used: float, evicts: bool) -> None:  # noqa: FBT001 - what Pressure tells
    metrics.REDIS_MEMORY_USED_RATIO.set(used)
    metrics.REDIS_EVICTS.set(evicts)


def _count_failure(error: str) -> None:
    metrics.PRODUCE_ERRORS.labels(error).inc()


def _count_trimmed(reason: Reason, records: int) -> None:
    metrics.LOG_TRIMMED_RECORDS.labels(reason).inc(records)


def _when_supervisor_is_gone(life_fd: int, act: Callable[[], object]) -> None:
    """Nobody writes to the pipe: it becomes readable when its other end is gone."""
    gevent.socket.wait_read(life_fd)
    act()


def _collect_less() -> None:
    """Make the garbage collector look less often: a fetch reads lists by the ten thousand, and none is garbage.

    With Python's own thresholds it takes two thirds of the CPU of a read. What was there before the fork is shared
    with the other workers and never collected.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)


def _keep_freed_memory() -> None:
    """Keep what large requests and replies leave free for the next ones, up to a bound.

    By default glibc maps every buffer of 128 KiB and more anew and gives it back at once, and the page faults of that
    cost a fetch of 1 MiB a quarter of its CPU. Other C libraries have no mallopt and are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def _raise_descriptor_limit() -> None:
    """Every connection is a descriptor; the soft limit of most systems (1024) is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(
        ValueError, OSError
    ):  # an unlimited hard limit may be more than the kernel takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
