"""Fetch sessions (KIP-227): what consumers of many partitions read, kept from one fetch to the next.

A session knows its partitions, so a fetch names those alone that are new or at another offset, and is answered with
those alone that have something new. Beyond what Kafka keeps, it has them resolved, and listens to their channels from
one fetch to the next. What is at its end is not read again until something is announced. Once in the time for which
fetches wait it is searched for what nobody has announced, and every READ_SECONDS it is read for its bounds.

A session belongs to one connection of one worker. No client goes on with one over another connection, which most
likely is served by another worker, and nobody else can use or close it. It ends with its connection, or when others
take its place (Kafka's rules, FetchSessionCache): then the next fetch is FETCH_SESSION_ID_NOT_FOUND, and its client
names all its partitions once more, as it does without sessions.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.collect import FetchPartitionSpec, FetchResult
from korvet.log.fetch_set import FetchSet
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.telemetry import metrics
from korvet.topics.registry import NAME_LENGTH_MAX, Topic, TopicRegistry
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

NO_SESSION = 0
"""The id of no session."""

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""The first asks for a new session, the other one for none; both close the one that is named."""

TOPIC_ID_VERSION_FIRST = 13
"""From here on requests give the ids of topics (KIP-516). Those of a session all do so, or none does."""

EVICTION_SECONDS = 120.0
"""How long a session must be unused, or old, before others may take its place (Kafka: 2 minutes)."""

SESSION_PARTITIONS_MAX = 10_000
"""Partitions of one session; with more there is none."""

PARTITIONS_MAX = 100_000
"""Partitions in all sessions of a worker, at about 1 KiB each."""

OF_CONNECTION_MAX = 10
"""Sessions of one connection. Clients have one; who opens new ones only would have the slots of all others."""

A = TypeVar("A")

Refused = Callable[[Iterable[TopicRef]], Mapping[TopicRef, KafkaError]]
"""Returns which of some topics may not be read, and why."""

MakeSpec = Callable[[A, Topic, Partition], FetchPartitionSpec]
"""Returns what to fetch of a partition, from what the request asks of it."""

ReadDue = Callable[[FetchSet, Sequence[int] | None, bool], dict[int, FetchResult]]
"""Fetches of a set what is due, None: all; waits for more, or does not."""

Answered = list[tuple["SessionPartition[A]", FetchResult]]
"""What a client is answered."""


class Owner(Protocol):
    """The connection of a session."""

    def on_end(self, call: Callable[[], object]) -> None:
        """Have `call` called when it has ended."""


class SessionPartition(Generic[A]):
    """A partition of a session: what is asked of it, and which bounds its client knows, -1 for none.

    These are the high watermark, the last stable offset and the log's start.

    `place` is its place among those that are fetched, `turn` its turn in being read.
    """

    __slots__ = ("asked", "bounds", "index", "place", "topic", "turn")

    def __init__(self, ref: PartitionRef[A], place: int) -> None:
        self.topic = ref.topic
        self.index = ref.partition
        self.asked = ref.asked
        self.place = self.turn = place
        self.bounds = (-1, -1, -1)

    def learn(self, result: FetchResult) -> bool:
        """Note what the client is answered; returns whether it is to be, for it differs from what it knows."""
        bounds = (result.high_watermark, result.last_stable_offset, result.log_start)
        known, self.bounds = self.bounds, bounds
        return bool(result.error or result.chunks or result.diverging) or self.bounds != known


class FetchSession(Generic[A]):
    """The partitions that one client fetches."""

    def __init__(self, session_id: int, owner: Owner, version: int, watch: Watch, now: float) -> None:
        self.id = session_id
        self.owner = owner
        self.version = version
        """Of the API, in the last request."""
        self.committed = False
        self.epoch = 1
        self.created_at = self.used_at = now
        self.counted = 0
        """How many of its partitions the cache has counted."""
        self._topics: dict[TopicRef, dict[int, SessionPartition[A]]] = {}
        self._partitions: dict[int, SessionPartition[A]] = {}
        self._numbers = count()
        self._registry_version = -1
        self._due: set[int] = set()
        self._reads = FetchSet(watch, lambda place: self._partitions[place].turn)
        self._under_way = self._closed = False

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, ref: PartitionRef[A]) -> SessionPartition[A]:
        """Take in a partition, or take over what is asked of it now."""
        of_topic = self._topics.setdefault(ref.topic, {})
        partition = of_topic.get(ref.partition)
        if partition is None:
            partition = of_topic[ref.partition] = SessionPartition(ref, next(self._numbers))
            self._partitions[partition.place] = partition
        partition.asked = ref.asked
        self._due.add(partition.place)
        return partition

    def forget(self, topic: TopicRef, indexes: Iterable[int]) -> None:
        """Remove partitions of a topic; those that it does not have are no error."""
        of_topic = self._topics.get(topic, {})
        for index in indexes:
            partition = of_topic.pop(index, None)
            if partition is not None:
                self._unresolve(partition)
                self._due.discard(partition.place)
                del self._partitions[partition.place]
        if not of_topic:
            self._topics.pop(topic, None)

    def use_version(self, version: int) -> None:
        """Note the version of a request: what is to be fetched may depend on it."""
        if version != self.version:
            self.version = version
            self._unresolve_where(lambda _partition, _spec: True)

    def use_isolation(self, *, committed: bool) -> None:
        """Note whether a request asks for committed records only."""
        if committed != self.committed:
            self.committed = committed
            self._unresolve_where(lambda _partition, _spec: True)

    def close(self) -> None:
        """Stop listening, as soon as a fetch that is under way has ended."""
        self._closed = True
        if not self._under_way:
            self._release()

    def fetch(
        self, topics: TopicRegistry, refused: Refused, spec: MakeSpec[A], read: ReadDue, wait_ms: int
    ) -> Answered[A]:
        """Fetch the partitions, and return what the client is answered.

        Raises StorageUnavailableError; then the session has to be closed.
        """
        self._under_way = True
        try:
            results = self._refuse(refused(self._topics))
            self._note_due(topics, wait_ms)
            due = sorted(self._due - results.keys(), key=self._reads.order)
            reading = _Reading(self, self._reads, spec, read, len(due))
            partitions = [self._partitions[place] for place in due]
            refs = [PartitionRef(each.topic, each.index, each) for each in partitions]
            answers = topics.ask(refs, reading.resolve, reading.read, at_once=max(1, len(refs)))
            if not reading.begun:
                # None of those that are due can be read, but others may have been announced.
                reading.read(())
            results |= reading.results
            for partition, answer in zip(partitions, answers, strict=True):
                if isinstance(answer, KafkaError):
                    self._unresolve(partition)
                    results[partition.place] = FetchResult.refused(answer)
            return self._answered(results, set(due))
        finally:
            self._under_way = False
            if self._closed:
                self._release()

    def _release(self) -> None:
        self._reads.watch.close()
        # The order of the reads leads back to this session, and the collector seldom runs (worker.py).
        self._reads.order = None
        for each in (self._topics, self._partitions, self._reads.specs, self._due):
            each.clear()

    def _refuse(self, refused: Mapping[TopicRef, KafkaError]) -> dict[int, FetchResult]:
        """Return errors for what may not be read: it may have been before, and may be later."""
        results: dict[int, FetchResult] = {}
        for topic, error in refused.items():
            for partition in self._topics[topic].values():
                self._unresolve(partition)
                results[partition.place] = FetchResult.refused(error)
        return results

    def _note_due(self, topics: TopicRegistry, wait_ms: int) -> None:
        """Note what has to be read again since the last fetch."""
        if topics.version != self._registry_version:
            self._registry_version = topics.version
            self._unresolve_where(lambda partition, spec: topics.cached(partition.topic) is not spec.topic)
        reads = self._reads
        self._due |= reads.watch.take() & reads.specs.keys()
        reads.search_at = reads.searched_at + wait_ms / 1000
        if wait_ms <= 0:
            # Without a wait there is no time after which to search: it is read at once, as without a session.
            self._due.update(reads.specs)

    def resolve(self, partition: SessionPartition[A], spec: FetchPartitionSpec) -> None:
        """Note what is fetched of a partition."""
        reads, place = self._reads, partition.place
        before = reads.specs.get(place)
        reads.specs[place] = spec
        if before is None or before.partition.channel != spec.partition.channel:
            if before is not None:
                reads.watch.remove(place)
            reads.watch.add(place, spec.partition.channel)

    def _unresolve(self, partition: SessionPartition[A]) -> None:
        if self._reads.specs.pop(partition.place, None) is not None:
            self._reads.ends.pop(partition.place, None)
            self._reads.watch.remove(partition.place)
        self._due.add(partition.place)

    def _unresolve_where(self, outdated: Callable[[SessionPartition[A], FetchPartitionSpec], bool]) -> None:
        for place, spec in list(self._reads.specs.items()):
            if outdated(self._partitions[place], spec):
                self._unresolve(self._partitions[place])

    def _answered(self, results: dict[int, FetchResult], due: set[int]) -> Answered[A]:
        """Return what the client is answered, and note what need not be read by the next fetch."""
        answered: Answered[A] = []
        for place, result in in_turns(results.items()):
            partition, spec = self._partitions[place], self._reads.specs.get(place)
            if place not in due and isinstance(_or_stale(result), KafkaError):
                # It was deleted or created again meanwhile: the next fetch, which it is due in, finds out which.
                self._due.add(place)
                continue
            if spec is not None and result.is_quiet(spec) and self._reads.watch.hears(place):
                self._due.discard(place)
            else:
                self._due.add(place)
            if result.chunks:
                # The others come first next time: one that always has records would use up the limits (KIP-227).
                partition.turn = next(self._numbers)
            if partition.learn(result):
                answered.append((partition, result))
        return answered


class _Reading(Generic[A]):
    """The reads of one fetch of a session, as the registry asks for them. `results` are by place."""

    def __init__(
        self, session: FetchSession[A], reads: FetchSet, spec: MakeSpec[A], read: ReadDue, wanted: int
    ) -> None:
        self.begun = False
        self.results: dict[int, FetchResult] = {}
        self._session, self._reads = session, reads
        self._spec, self._read, self._wanted = spec, read, wanted

    def resolve(self, of: SessionPartition[A], topic: Topic, partition: Partition) -> SessionPartition[A]:
        """Note what is fetched of a partition that the registry has found."""
        self._session.resolve(of, self._spec(of.asked, topic, partition))
        return of

    def read(self, partitions: Sequence[SessionPartition[A]]) -> list[FetchResult | KafkaError]:
        """Fetch; returns the results of `partitions`, and keeps those of all that was read."""
        # An error is answered at once, and if a topic was stale, what there is.
        waits = not self.begun and len(partitions) == self._wanted
        if self.begun:
            # What was read at first is in the answer, and would be read again.
            self._reads.search_at = math.inf
        self.begun = True
        if not self._reads.watch.hears_all:
            # Before anything is read: what is read by one that listens need not be read again. If there is enough, it
            # does not matter that this has failed; or else it is tried, and fails, once more.
            with contextlib.suppress(StorageUnavailableError):
                self._reads.watch.listen()
        places = [each.place for each in partitions]
        found = self._read(self._reads, places if len(places) < len(self._reads.specs) else None, waits)
        self.results |= found
        return [_or_stale(found[each.place]) for each in partitions]


def _or_stale(result: FetchResult) -> FetchResult | KafkaError:
    """Return the result, or as an error that the log is of no topic, or another one: the registry is refreshed then."""
    return KafkaError(result.error) if result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else result


class FetchSessions:
    """The sessions of one worker (Kafka's FetchSessionCache).

    Its methods give no turns, so that no session ends while it is changed: what they go through is bounded.
    """

    def __init__(
        self, subscriptions: Subscriptions, slots: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`slots` is how many there may be."""
        self._subscriptions = subscriptions
        self._slots = slots
        self._clock = clock
        # The one that was used longest ago comes first.
        self._sessions: dict[int, FetchSession[Any]] = {}
        self._owned: dict[Owner, set[int]] = {}
        self._partitions = 0

    def create(
        self,
        owner: Owner,
        version: int,
        refs: Sequence[PartitionRef[A]],
        results: Sequence[FetchResult | KafkaError],
    ) -> int:
        """Keep the partitions of a fetch that named them all, and was answered; returns the session, maybe NO_SESSION.

        `version` is that of the request.
        """
        size = len(refs)
        if not 0 < size <= SESSION_PARTITIONS_MAX or not _can_exist(refs):
            return NO_SESSION
        owned = self._owned.get(owner, ())
        if len(owned) >= OF_CONNECTION_MAX:
            self._remove(min((self._sessions[each] for each in owned), key=lambda each: each.used_at))
        if not self._has_room(size):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(INT32_MAX) + 1
        session: FetchSession[A] = FetchSession(
            session_id, owner, version, Watch(self._subscriptions), self._clock()
        )
        for ref, result in zip(refs, results, strict=True):
            answered = result if isinstance(result, FetchResult) else FetchResult.refused(result)
            session.add(ref).learn(answered)
        if owner not in self._owned:
            self._owned[owner] = set()
            owner.on_end(partial(self._end, owner))
        self._owned[owner].add(session_id)
        metrics.FETCH_SESSIONS.inc()
        self._use(session)
        return session_id

    def resume(
        self,
        named: tuple[int, int],
        owner: Owner,
        version: int,
        refs: Sequence[PartitionRef[A]],
        forgotten: Iterable[tuple[TopicRef, Sequence[int]]],
    ) -> FetchSession[A] | None:
        """Return a session by its id and epoch, with the partitions that a request adds and without those it removes.

        None if none is left: it is closed then. Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, also for one that
        became too large, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session_id, epoch = named
        session: FetchSession[A] | None = self._sessions.get(session_id)
        if session is None or session.owner is not owner:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            message = f"fetch session {session_id} is in epoch {session.epoch}, not {epoch}"
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, message)
        if (session.version < TOPIC_ID_VERSION_FIRST) != (version < TOPIC_ID_VERSION_FIRST):
            message = f"fetch session {session_id} does not name its topics so"
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, message)
        session.use_version(version)
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        fits = len(refs) <= SESSION_PARTITIONS_MAX and _can_exist(refs)
        if fits:
            for ref in refs:
                session.add(ref)
            for topic, indexes in forgotten:
                session.forget(topic, indexes)
            self._use(session)
        if not fits or len(session) > SESSION_PARTITIONS_MAX or self._partitions > PARTITIONS_MAX:
            self._remove(session)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} is too large")
        if not len(session):
            self._remove(session)
            return None
        return session

    def close(self, session_id: int, owner: Owner) -> None:
        """Close a session, if there is one of that connection."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner is owner:
            self._remove(session)

    def _use(self, session: FetchSession[Any]) -> None:
        """Count its partitions, and let it be the one that was used last."""
        more = len(session) - session.counted
        if more:
            session.counted += more
            self._partitions += more
            metrics.FETCH_SESSION_PARTITIONS.inc(more)
        session.used_at = self._clock()
        self._sessions.pop(session.id, None)
        self._sessions[session.id] = session

    def _has_room(self, size: int) -> bool:
        """Return whether there is room for a session of that size; others are evicted for it."""
        while len(self._sessions) >= self._slots or self._partitions + size > PARTITIONS_MAX:
            evicted = self._evictable(size)
            if evicted is None:
                return False
            self._remove(evicted)
            metrics.FETCH_SESSION_EVICTIONS.inc()
        return True

    def _evictable(self, size: int) -> FetchSession[Any] | None:
        """Return a session in whose place one of that size may come: one that is unused, or old and smaller."""
        before = self._clock() - EVICTION_SECONDS
        last = next(iter(self._sessions.values()), None)
        if last is None or last.used_at < before:
            return last
        old = [each for each in self._sessions.values() if each.created_at < before and each.counted < size]
        return min(old, key=lambda each: each.counted, default=None)

    def _remove(self, session: FetchSession[Any]) -> None:
        del self._sessions[session.id]
        self._owned[session.owner].discard(session.id)
        self._partitions -= session.counted
        metrics.FETCH_SESSIONS.dec()
        metrics.FETCH_SESSION_PARTITIONS.dec(session.counted)
        session.close()

    def _end(self, owner: Owner) -> None:
        for session_id in list(self._owned[owner]):
            self._remove(self._sessions[session_id])
        del self._owned[owner]


def _can_exist(refs: Sequence[PartitionRef[Any]]) -> bool:
    """Return whether topics may have such names: those that are longer would only fill the memory."""
    return all(len(each.topic.name) <= NAME_LENGTH_MAX for each in refs)
