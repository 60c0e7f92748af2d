"""What a worker appends to logs: korvet_core.DataPath does it, and asks here for what the core cannot know.

The core serves the Produce requests of clients, and appends for the worker itself (`Appends.append`). It sends the
append scripts, and knows what became of each batch. It asks about leader epochs, slots that have moved and entries of
other Redis clients that are in the way, and for clients about what `Decisions` decides on. A request with questions
waits until they are answered, and nothing that its producer sent later overtakes it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import gevent
from gevent.event import AsyncResult
from korvet_core import DataPath

from korvet.errors import (
    AppendUnknownError,
    ErrorCode,
    KafkaError,
    NodeAwayError,
    RecordsRefusedError,
    StorageUnavailableError,
)
from korvet.log.epochs import NO_EPOCH, LeaderEpochs
from korvet.log.external_entries import ExternalEntries, report_moved
from korvet.log.types import Appended, LogLimits
from korvet.logs import Log
from korvet.protocol.wire import Buffer
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import MemoryFullError, error_of
from korvet.topics.config import TopicConfig
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import AtRest, Partition, TopicRef
from korvet.turns import SHORTEST_SECONDS, in_turns

_BATCH, _RECORD = scripts.get("log/append_batch"), scripts.get("log/append_record")

APPEND_SCRIPTS = (_BATCH, _RECORD)
"""The scripts that append, of formats `batch` and `record`."""

_log = Log(__name__)

Question: TypeAlias = tuple[Any, ...]
"""A word and what it is about (korvet_core.DataPath.questions)."""

Decision: TypeAlias = int | tuple[int, int] | tuple[int, str, str] | None
"""None to go on, a number, a throttle (ms) and the number of its reason, or an error (`refused`)."""


class Marker(NamedTuple):
    """The end of a transaction in a partition.

    `number` THE_OPEN_ONE ends the one that is open there, whichever it is, OPEN_BEFORE only one of an earlier epoch.
    """

    partition: Partition
    producer_id: int
    epoch: int
    number: int
    commit: bool


THE_OPEN_ONE, OPEN_BEFORE = 0, -1
"""In place of the number of a transaction."""


class BatchAppend(NamedTuple):
    """A batch for a partition, as a producer would send it, by the configs of its topic.

    `number` is that of its transaction, if it is of one.
    """

    partition: Partition
    batch: Buffer
    config: TopicConfig | None = None
    number: int | None = None


class AppendConfig(NamedTuple):
    """The configs of a topic as the core takes them; by default nothing is limited."""

    codec: int | None = None
    consumer_codec: int = 0
    at_rest: tuple[str, int] = (AtRest().codec, AtRest().min_bytes)
    max_message_bytes: int = 2**31 - 1
    max_message_records: int = 2**31 - 1
    is_compacted: bool = False
    has_append_time: bool = False
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 2**63 - 1

    @classmethod
    def of(cls, config: TopicConfig) -> AppendConfig:
        """Take those that decide on appends."""
        return cls(
            codec=config.codec if config.recompress else None,
            consumer_codec=config.codec,
            at_rest=(config.at_rest.codec, config.at_rest.min_bytes),
            max_message_bytes=config.max_message_bytes,
            max_message_records=config.max_message_records,
            is_compacted=config.compact,
            has_append_time=config.log_append_time,
            timestamp_before_max_ms=config.timestamp_before_max_ms,
            timestamp_after_max_ms=config.timestamp_after_max_ms,
        )


PARTITIONS_MAX = 100_000
"""Partitions that are remembered for questions about them; of more the first is forgotten."""

_NO_CONFIG = AppendConfig()
NO_TOPIC = bytes(16)


class AppendPartition(NamedTuple):
    """A partition as the core takes it; `bits` None: an entry of its stream is a batch."""

    topic: str
    topic_id: bytes
    topic_id_text: str
    partition_index: int
    bits: int | None
    keys: tuple[str, ...]
    replicas: int
    config: AppendConfig

    @classmethod
    def of(cls, partition: Partition, config: AppendConfig, topic_id: bytes = NO_TOPIC) -> AppendPartition:
        """Take what decides on appends; `topic_id` is the one by which clients name the topic."""
        return cls(
            topic=partition.topic,
            topic_id=topic_id,
            topic_id_text=partition.topic_id,
            partition_index=partition.index,
            bits=None if partition.format == "batch" else max(partition.bits, 0),
            keys=(
                partition.stream,
                partition.state,
                partition.index_key,
                partition.open_transactions,
                partition.aborted,
                *partition.compacted,
                partition.channel,
            ),
            replicas=partition.replicas,
            config=config,
        )


class Decisions(Protocol):
    """Decides on what clients ask for."""

    def confirm(self, asked: Sequence[tuple[int, str, int]]) -> Sequence[Decision]:
        """Return for each node (by number), history and count whether as many replicas have what was written."""

    def find(self, asked: Sequence[tuple[str, bytes | None, int, bool]]) -> Sequence[Decision]:
        """Put partitions, by the name or id of the topic; returns for each whether there is one.

        The last of each is whether its log has another topic id than the one that was put.
        """

    def decide(self, client: Any, question: Question) -> Decision:  # noqa: ANN401 - whom the core has for its connection
        """Return the decision on one question; raises KafkaError."""


def refused(error: KafkaError) -> tuple[int, str, str]:
    """Return the decision to answer with an error."""
    kind = "rule"
    if isinstance(error, StorageUnavailableError):
        kind = "away" if isinstance(error, NodeAwayError) else "unavailable"
    return error.code.value, error.message, kind


class Appends:
    """The appends of one worker over the lane `redis`."""

    def __init__(
        self,
        redis: Redis,
        epochs: LeaderEpochs,
        external: ExternalEntries,
        *,
        time_at: Callable[[Partition, int], int],
        limits: LogLimits,
        replicas: int = 0,
        reads: Redis | None = None,
    ) -> None:
        """`time_at` returns the time (ms) of the record at an offset, -1 if it is not known.

        `replicas` of Redis have to have an append with acks=all at least.
        """
        self._redis, self._epochs, self._external = redis, epochs, external
        self._time_at = time_at
        self._partitions: dict[str, Partition] = {}
        """Those that the core may ask about, by stream."""
        self._codecs: dict[str, int] = {}
        self._waiting: dict[int, AsyncResult[None]] = {}
        self._done: set[int] = set()
        self._left: set[int] = set()
        """Requests under way for whose outcomes nobody waits any more."""
        self.clients: Decisions | None = None
        self.on_row: Callable[[Partition], object] = lambda _partition: None
        """Called for each partition whose index got a row; must not wait."""
        self.on_noted: Callable[[], object] = lambda: None
        """Called when `core.take_noted` has something; must not wait."""
        self.on_pressure: Callable[[int, bool], object] = lambda _node, _full: None
        """Called with a node when another reading of how full it is is due, and when it has refused; must not wait."""
        self.core = self._data_path(redis, redis if reads is None else reads, limits, replicas)
        self.core.join()
        redis.order.follow(self.core.reordered)
        # A connection to a master that was replaced gets nothing more, once any lane has learned of the other one.
        epochs.on_later = self.core.put_epoch
        self.hears: dict[str, Callable[[Any, Any], object]] = {
            "asked": partial(gevent.spawn, self._decide),
            "done": lambda request, _: self._finish(request),
            "epoch": lambda node, _: gevent.spawn(self._learn_epoch, node),
            "noted": lambda _, __: self.on_noted(),
            "pressure": lambda node, _: self.on_pressure(node, False),  # noqa: FBT003 - it is not full
            "full": lambda node, _: self.on_pressure(node, True),  # noqa: FBT003 - it is
            "map": lambda _, __: redis.driver.read_map_soon(),
            "row": lambda stream, _: self._note_row(stream),
            "moved": self._note_moved,
        }

    def _data_path(self, redis: Redis, reads: Redis, limits: LogLimits, replicas: int) -> DataPath[Any]:
        return DataPath(
            redis.driver.core,
            (redis.number, reads.number),
            APPEND_SCRIPTS,
            self._on_news,
            is_cluster=redis.is_cluster,
            plain_bytes_max=limits.decompressed_bytes_max,
            held_bytes_max=limits.held_bytes_max,
            timeout_s=redis.timeout_s,
            replicas=replicas,
            sessions_max=limits.fetch_sessions_max,
            seed=secrets.randbits(63),
            wait_max_s=limits.fetch_wait_max_s,
            now_s=time.monotonic(),
        )

    def put(self, partition: Partition, topic: Topic) -> None:
        """Let the core append to a partition of a topic for clients."""
        self._remember(partition)
        self._codecs[partition.stream] = topic.config.codec
        self.core.put_partition(AppendPartition.of(partition, AppendConfig.of(topic.config), topic.id))

    def find(
        self, topics: TopicRegistry, asked: Sequence[tuple[str, bytes | None, int, bool]]
    ) -> list[KafkaError | None]:
        """Put partitions for clients, by the name or id of the topic; returns for each why there is none.

        The last of each is whether its log has another topic id than the one that was put. Redis is asked once or twice
        what topics there are, however many are not known.
        """
        refs = [(TopicRef(name, topic_id), index) for name, topic_id, index, _ in in_turns(asked)]
        stale = {
            place: topic.partitions[index]
            for place, ((ref, index), (*_, is_stale)) in enumerate(in_turns(zip(refs, asked, strict=True)))
            if is_stale and (topic := topics.cached(ref)) is not None and 0 <= index < len(topic.partitions)
        }
        gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        lost = stale.keys() - topics.refresh_stale(dict.fromkeys(stale, gone), stale)
        errors: list[KafkaError | None] = []
        # A change of a topic makes the core forget its partitions: they are put when all is read.
        for place, result in enumerate(in_turns(topics.find(refs))):
            if place in lost:
                errors.append(gone)
            elif isinstance(result, KafkaError):
                errors.append(result)
            else:
                topic, partition = result
                self.put(partition, topic)
                errors.append(None)
        return errors

    def append(self, batches: Sequence[BatchAppend | Marker]) -> list[Appended | KafkaError]:
        """Append each batch and wait for what becomes of it: KafkaError as `LogStore.append` says."""
        # The core refuses what has no node: a client that has sent nothing yet has no map of the cluster.
        self._redis.driver.masters()
        asked: list[tuple[AppendPartition, Any, int | None]] = []
        for item in batches:
            partition = item.partition
            self._remember(partition)
            if isinstance(item, Marker):
                what: Any = (item.producer_id, item.epoch, item.number, item.commit)
                asked.append((AppendPartition.of(partition, _NO_CONFIG), what, None))
            else:
                config = _NO_CONFIG if item.config is None else AppendConfig.of(item.config)
                asked.append((AppendPartition.of(partition, config), item.batch, item.number))
        request = self.core.append(asked)
        self._wait(request)
        outcomes = self.core.outcomes(request)
        return [
            self._appended(batch.partition, outcome) for batch, outcome in zip(batches, outcomes, strict=True)
        ]

    def _wait(self, request: int) -> None:
        """Wait until a request of this worker itself is done; it may be before it is waited for."""
        if request in self._done:
            self._done.remove(request)
            return
        waiter = self._waiting[request] = AsyncResult()
        try:
            waiter.get()
        except BaseException:
            if self._waiting.pop(request, None) is None:
                self.core.outcomes(request)
            else:
                self._left.add(request)
            raise

    def _appended(self, partition: Partition, outcome: tuple[Any, ...]) -> Appended | KafkaError:
        if len(outcome) == len(_ERROR_FIELDS):
            return error_of_outcome(outcome)
        base_offset, log_start, duplicate, row_bytes, history, timestamp, node = outcome
        return Appended(
            base_offset=base_offset,
            log_start=log_start,
            duplicate=duplicate,
            row_bytes=row_bytes,
            history=history,
            timestamp=timestamp,
            replicas=partition.replicas,
            node=self._redis.node_numbered(node).name,
        )

    def _on_news(self, news: list[tuple[str, Any, Any]]) -> None:
        """Take what the core has to say; called wherever the core is, so nothing here waits."""
        for word, subject, detail in news:
            try:
                self.hears[word](subject, detail)
            except Exception:  # noqa: BLE001 - a mistake of ours: the rest of the news is heard
                _log.exception("news of appends failed", about=word)

    def _finish(self, request: int) -> None:
        """Wake who waits for a request of this worker itself."""
        if request in self._left:
            self._left.remove(request)
            self.core.outcomes(request)
        elif (waiter := self._waiting.pop(request, None)) is None:
            self._done.add(request)
        else:
            waiter.set(None)

    def _note_row(self, stream: str) -> None:
        if (partition := self.remembered(stream)) is not None:
            self.on_row(partition)

    def _note_moved(self, stream: str, count: int) -> None:
        if (partition := self.remembered(stream)) is not None:
            report_moved(partition, count)

    def remembered(self, stream: str) -> Partition | None:
        """Return the partition that the core names by its stream."""
        return self._partitions.get(stream)

    def _learn_epoch(self, number: int) -> None:
        """Learn the leader epoch of a node, for which appends wait."""
        node = self._redis.node_numbered(number)
        try:
            epoch = self._epochs.of(node)
        except KafkaError as error:
            self.core.no_epoch(number, error.message)
        except BaseException:
            self.core.no_epoch(number, "an error of the broker; its log says more")
            raise
        else:
            self.core.put_epoch(number, node.history, epoch)

    def _decide(self, request: int, client: Any) -> None:  # noqa: ANN401 - as above
        questions = self.core.questions(request)
        fault = ErrorCode.UNKNOWN_SERVER_ERROR.value, "an error of the broker; its log says more", "rule"
        decisions: list[Decision] = [fault] * len(questions)
        try:
            # All at once: the nodes and the numbers together take no longer than one, and so do the topics.
            groups: dict[str, Callable[[Sequence[Any]], Sequence[Decision]]] = {}
            if self.clients is not None:
                groups = {"confirm": self.clients.confirm, "topic": self.clients.find}
            for word, decide in groups.items():
                indexes = [index for index, question in enumerate(questions) if question[0] == word]
                decided = decide([questions[index][1:] for index in indexes]) if indexes else []
                for index, decision in zip(indexes, decided, strict=True):
                    decisions[index] = decision
            for index, question in enumerate(in_turns(questions)):
                if question[0] not in groups:
                    decisions[index] = self._decision(client, question)
        except Exception:  # noqa: BLE001 - a mistake of ours: its clients get an error and the others go on
            _log.exception("request failed", api="Produce")
        finally:
            self.core.decide(request, decisions)

    def _decision(self, client: Any, question: Question) -> Decision:  # noqa: ANN401 - as above
        own: dict[str, Callable[..., Decision]] = {
            "external": self._settle,
            "stale": self._learn_later,
            "elsewhere": self._follow,
            "time at": self._time,
            "rest": self._rest,
        }
        try:
            if question[0] in own:
                return own[question[0]](*question[1:])
            # Without clients nothing else is asked.
            return None if self.clients is None else self.clients.decide(client, question)
        except KafkaError as error:
            return refused(error.without_frames())

    def partition_of(self, stream: str) -> Partition:
        """Return a partition that the core asks about; raises StorageUnavailableError."""
        partition = self.remembered(stream)
        if partition is None:
            raise StorageUnavailableError(f"{stream} was forgotten")
        return partition

    def codec_of(self, stream: str) -> int:
        """Return the codec of batches that are made for consumers of a log that clients use."""
        return self._codecs.get(stream, 0)

    def _remember(self, partition: Partition) -> None:
        if len(self._partitions) >= PARTITIONS_MAX:
            first = next(iter(self._partitions))
            del self._partitions[first]
            self._codecs.pop(first, None)
        self._partitions[partition.stream] = partition

    def _settle(self, stream: str) -> Decision:
        refusal = self._external.settle(self.partition_of(stream))
        return None if refusal is None else refused(refusal)

    def _learn_later(self, number: int, later: int | None) -> Decision:
        """Learn the epoch of a node of which a log has a later one."""
        node = self._redis.node_numbered(number)
        with contextlib.suppress(KafkaError):
            if (last := NO_EPOCH if later is None else later) > self._epochs.known(node):
                self._epochs.refresh(node, last)
            epoch = self._epochs.of(node)
            self.core.put_epoch(number, node.history, epoch)
        return None

    def _follow(self, replies: Sequence[str], attempt: int) -> Decision:
        self._redis.follow([error_of(reply) for reply in replies], attempt)
        return None

    def _rest(self) -> Decision:
        """Go on with a request of which much was looked at, once all others had a turn."""
        gevent.sleep(SHORTEST_SECONDS)
        return None

    def _time(self, stream: str, offset: int) -> Decision:
        return self._time_at(self.partition_of(stream), offset)


_ERROR_FIELDS = ("code", "message", "kind", "records")
_ERRORS: dict[str, Callable[[str], KafkaError]] = {
    "unavailable": StorageUnavailableError,
    "away": NodeAwayError,
    "memory full": MemoryFullError,
    "unknown": partial(AppendUnknownError, idempotent=False),
    "unknown idempotent": partial(AppendUnknownError, idempotent=True),
}


def error_of_outcome(outcome: tuple[Any, ...]) -> KafkaError:
    """Return the error of an append that failed."""
    code, message, kind, records = outcome
    if records:
        return RecordsRefusedError(ErrorCode(code), message, records)
    make = _ERRORS.get(kind)
    return KafkaError(ErrorCode(code), message) if make is None else make(message)
