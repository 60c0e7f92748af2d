"""Topics: their names and ids, creation and deletion, and the registry that each worker keeps in memory.

The registry is a cache of the one in Redis. A topic that it lacks is looked up there before it is called unknown. One
that was deleted or created again meanwhile is stale: every script compares topic ids, so it costs a retry and no
record.
"""

from __future__ import annotations

import base64
import contextlib
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Literal, TypeVar

import msgspec
from gevent.lock import RLock

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.config.topic_configs import FIXED_AT_CREATION
from korvet.config.values import listed
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.topics import config as topic_config
from korvet.topics.config import TopicConfig
from korvet.topics.deletion import paced
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition, PartitionRef, TopicPartitions, TopicRef, TopicRow
from korvet.turns import in_parts, in_turns

NAME_LENGTH_MAX = 249
"""Kafka's limit: it leaves room for a suffix in a 255-byte file name, and tools rely on it."""

PARTITIONS_MAX = 10_000
"""Partitions of one topic: a second or two to create. No request may ask for more in all."""

PARTITIONS_AT_ONCE = 1000
"""Partitions that Redis is asked about at once: some milliseconds of it, for other clients wait meanwhile."""

CONFIGS_MAX = 1000
"""Effective configs kept for reuse; beyond it all are computed again. Requests that only validate name configs too."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
X = TypeVar("X")
Q = TypeVar("Q")
A = TypeVar("A")

PartitionOf = Callable[[str, int, str, int, Literal["record", "batch"], int, str], Partition]
Assignment = Sequence[Sequence[int]] | None
"""The brokers that each partition is meant for, by its index; None: any."""


def check_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION if `name` is not a valid topic name, saying why."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of {len(name)} characters exceeds {NAME_LENGTH_MAX}"
    elif not _NAME.fullmatch(name):
        problem = "it contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def check_collisions(name: str, others: Iterable[str]) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION if one of `others` differs from `name` only in `.` and `_`.

    Metrics have no dots, so both topics would be one there. lua/topic/create.lua has the same rule.
    """
    if "." not in name and "_" not in name:
        return
    without_dots = name.replace(".", "_")
    for other in others:
        if other.replace(".", "_") == without_dots and other != name:
            message = f"Topic '{name}' collides with existing topic: {other}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the registry. `id` are the 16 bytes of the wire; `partitions` are in order of their index.

    `overrides` and `named` are `configs` and `named` of its row.
    """

    name: str
    id: bytes
    partitions: Sequence[Partition]
    overrides: Mapping[str, str]
    config: TopicConfig
    named: Sequence[str] = ()
    assignment: Assignment = None

    @property
    def row(self) -> TopicRow:
        """What its row in Redis says, for a change that is only validated."""
        return TopicRow(
            name=self.name,
            id=id_text(self.id),
            partitions=len(self.partitions),
            configs=dict(self.overrides),
            named=list(self.named),
            assignment=None if self.assignment is None else [list(brokers) for brokers in self.assignment],
        )

    def partition(self, index: int) -> Partition:
        """Return the partition `index`; raises KafkaError UNKNOWN_TOPIC_OR_PARTITION if there is none."""
        if not 0 <= index < len(self.partitions):
            message = f"topic {self.name} has no partition {index}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return self.partitions[index]


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic to create; partitions and replication factor -1 mean the broker's defaults (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = {}
    assignment: Assignment = None


def id_text(topic_id: bytes) -> str:
    """Return a topic id as Kafka's tools print it: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def id_bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def unknown_id() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


def new_id() -> bytes:
    """Return a random topic id: not zero or one, which Kafka reserves, and without a dash at the front."""
    while True:
        # A leading dash would read as an option in Kafka's command-line tools, which avoid it likewise.
        topic_id = uuid.uuid4().bytes
        if not id_text(topic_id).startswith("-"):
            return topic_id


class TopicRegistry:
    """The topics of one worker. Methods that ask Redis raise StorageUnavailableError if it is away."""

    def __init__(
        self, store: TopicStore, settings: Settings, partition_of: PartitionOf, *, clock: Clock = CLOCK
    ) -> None:
        """`partition_of` gives a partition of the log for topic, index, topic id, bits, format, replicas, slot tag."""
        self._clock = clock
        self._store = store
        self._partition_of = partition_of
        self._settings = settings
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.ids: dict[str, str] = {}
        """The id of each topic by its name, as text, as of the last refresh."""
        # Topics that clients do not find: being created, or being deleted.
        self._unfinished: dict[str, TopicRow] = {}
        # Most topics have the same few configs, if any.
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self.epoch = -1
        """Number of the newest change in Redis, of topics, settings, features or rights, as of the last refresh."""
        self.version = 0
        """Changes whenever a topic of this registry does."""
        self._followers: list[Callable[[str | None], object]] = []
        self._refreshing = RLock()

    def follow(self, call: Callable[[str | None], object]) -> None:
        """Call `call`, which must not wait, with the name of each topic that has changed, None: any may have."""
        self._followers.append(call)

    def _note_change(self, name: str | None = None) -> None:
        for call in self._followers:
            call(name)

    def reload(self) -> None:
        with self._refreshing:
            self.epoch = -1
            self.refresh()

    def refresh(self) -> None:
        """Read the changes since the last refresh: one small command if there are none."""
        with self._refreshing:
            if self.epoch >= 0:
                changes = self._store.changes(self.epoch)
                if changes is not None:
                    for name in changes.deletions:
                        self._remove(name)
                        self._note_change(name)
                    for row in changes.upserts:
                        self._add(row)
                        self._note_change(row.name)
                    self.version += bool(changes.deletions or changes.upserts)
                    self.epoch = changes.epoch
                    return
            registry = self._store.load()
            self._by_name.clear()
            self._by_id.clear()
            self.ids.clear()
            self._unfinished.clear()
            self._configs.clear()
            for row in registry.rows.values():
                self._add(row)
            self.version += 1
            self.epoch = registry.epoch
            self._note_change()

    def apply_settings(self, settings: Settings) -> None:
        with self._refreshing:
            self._settings = settings
            self._configs.clear()
            self.version += 1
            for topic in self.list_cached():
                settled = msgspec.structs.replace(topic, config=self._config(topic.overrides))
                self._by_name[topic.name] = self._by_id[topic.id] = settled
            self._note_change()

    def _config(self, overrides: Mapping[str, str]) -> TopicConfig:
        key = tuple(overrides.items())
        config = self._configs.get(key)
        if config is None:
            if len(self._configs) >= CONFIGS_MAX:
                self._configs.clear()
            config = self._configs[key] = topic_config.effective(overrides, self._settings)
        return config

    def list_all(self) -> list[Topic]:
        self.refresh()
        return self.list_cached()

    def list_cached(self) -> list[Topic]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def get_cached(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def get(self, name: str) -> Topic:
        return self.resolve(TopicRef(name))

    def resolve(self, ref: TopicRef) -> Topic:
        """Return the topic of a name or id; raises KafkaError UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID."""
        topic = self.cached(ref)
        if topic is None:
            self.refresh()
            topic = self.known(ref)
        return topic

    def known(self, ref: TopicRef, outage: KafkaError | None = None) -> Topic:
        """Return the topic of a name or id as of the last refresh; raises KafkaError as `resolve` does, or `outage`."""
        topic = self.cached(ref)
        if topic is not None:
            return topic
        if outage is not None:
            raise outage
        if ref.id is not None:
            raise unknown_id()
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )

    def cached(self, ref: TopicRef) -> Topic | None:
        return self._by_name.get(ref.name) if ref.id is None else self._by_id.get(ref.id)

    def partition(self, ref: TopicRef, index: int) -> tuple[Topic, Partition]:
        """Return the topic of a name or id and its partition `index`; raises KafkaError as `resolve` does.

        Refreshes if the topic has no such partition: it may have been created again with more of them.
        """
        topic = self.resolve(ref)
        if index >= len(topic.partitions):
            self.refresh()
            topic = self.resolve(ref)
        return topic, topic.partition(index)

    def ask(
        self,
        refs: Sequence[PartitionRef[X] | KafkaError],
        prepare: Callable[[X, Topic, Partition], Q],
        ask: Callable[[Sequence[Q]], Sequence[A | KafkaError]],
        at_once: int = PARTITIONS_AT_ONCE,
    ) -> list[A | KafkaError]:
        """Ask the log about partitions; returns the answers in order, and KafkaError for what cannot be answered.

        `prepare` makes a partition's question, or raises KafkaError; `ask` is given the questions, `at_once` of them at
        the most, and is not called if partitions are named and none is known. An error among `refs` is its own answer.
        See `refresh_stale`.
        """
        answers: dict[int, A | KafkaError] = {
            place: ref for place, ref in enumerate(in_turns(refs)) if isinstance(ref, KafkaError)
        }
        places: Sequence[int] = range(len(refs))
        partitions = self._ask_once(refs, places, prepare, ask, at_once, answers)
        if stale := self.refresh_stale(answers, partitions):
            self._ask_once(refs, stale, prepare, ask, at_once, answers)
        return [answers[place] for place in in_turns(places)]

    def _ask_once(
        self,
        refs: Sequence[PartitionRef[X] | KafkaError],
        places: Sequence[int],
        prepare: Callable[[X, Topic, Partition], Q],
        ask: Callable[[Sequence[Q]], Sequence[A | KafkaError]],
        at_once: int,
        answers: dict[int, A | KafkaError],
    ) -> dict[int, Partition]:
        """Ask about the partitions at `places` and note the answers; returns those partitions that are known."""
        wanted = {place: ref for place in in_turns(places) if not isinstance(ref := refs[place], KafkaError)}
        result = self.find([ref[:2] for ref in in_turns(wanted.values())])
        partitions: dict[int, Partition] = {}
        questions: dict[int, Q] = {}
        for (place, ref), outcome in in_turns(zip(wanted.items(), result, strict=True)):
            try:
                topic, partitions[place] = or_raise(outcome)
                questions[place] = prepare(ref.asked, topic, partitions[place])
            except KafkaError as error:
                answers[place] = error.without_frames()
        if partitions or not refs:
            for chunk in in_parts(list(questions), at_once):
                answers.update(zip(chunk, ask([questions[place] for place in chunk]), strict=True))
        return partitions

    def find(self, refs: Sequence[tuple[TopicRef, int]]) -> list[tuple[Topic, Partition] | KafkaError]:
        """Return topic and partition of each ref, or why there is none; refreshes once if any is not known."""
        outage = self.refresh_for(refs)
        result: list[tuple[Topic, Partition] | KafkaError] = []
        for ref, index in in_turns(refs):
            try:
                if outage is not None and not self._has(ref, index):
                    raise outage
                topic = self.known(ref)
                result.append((topic, topic.partition(index)))
            except KafkaError as error:
                result.append(error.without_frames())
        return result

    def refresh_for(self, refs: Iterable[tuple[TopicRef, int]]) -> KafkaError | None:
        """Refresh once if any of the partitions is not in the registry; returns why that failed."""
        if not all(self._has(*ref) for ref in in_turns(refs)):
            try:
                self.refresh()
            except KafkaError as error:
                return error.without_frames()
        return None

    def _has(self, ref: TopicRef, index: int) -> bool:
        topic = self.cached(ref)
        return topic is not None and index < len(topic.partitions)

    def refresh_stale(
        self, answers: Mapping[int, object] | Sequence[object], partitions: Mapping[int, Partition]
    ) -> list[int]:
        """Refresh if the log did not know partitions that this registry gave; returns those to ask for once more.

        A topic that was deleted or created again since the last refresh is stale: its id is not that of the log,
        which answers UNKNOWN_TOPIC_OR_PARTITION and has done nothing. If Redis is away now, the answers stay.
        """
        stale = [
            place
            for place in in_turns(partitions)
            if isinstance(answer := answers[place], KafkaError)
            and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        if not stale:
            return []
        try:
            self.refresh()
            if any(self._is_current(partitions[place]) for place in stale):
                # The feed of changes does not show that Redis was emptied and has come to the same epoch again.
                self.reload()
        except KafkaError:
            return []
        return stale

    def _is_current(self, partition: Partition) -> bool:
        return self.ids.get(partition.topic) == partition.topic_id

    def check_available(self, name: str) -> None:
        """Raise KafkaError INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS if no topic can be created under that name."""
        check_name(name)
        if self.is_reserved(name):
            message = f"Topic name is invalid: topic.reserved.names reserves '{name}'"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        self.refresh()
        self._check_collisions(name)
        if name in self._by_name or self._in_state(name, "creating"):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")

    def is_reserved(self, name: str) -> bool:
        """Whether the setting topic.reserved.names keeps clients from creating a topic of that name."""
        return any(fnmatchcase(name, pattern) for pattern in listed(self._settings.topic_reserved_names))

    def _check_collisions(self, name: str) -> None:
        creating = (item for item in self._unfinished if self._in_state(item, "creating"))
        check_collisions(name, chain(self._by_name, creating))

    def _in_state(self, name: str, state: str) -> TopicRow | None:
        """Return the row of a topic that clients do not find, if it is in that state."""
        row = self._unfinished.get(name)
        return row if row is not None and row.state == state else None

    def check_total(self, counts: Iterable[int]) -> None:
        """Raise KafkaError POLICY_VIOLATION if the topics of one request have too many partitions in all, as in Kafka.

        `counts` are theirs, -1 for the default; one that no topic can have is for `create` to refuse.
        """
        asked = [self._settings.num_partitions if count == -1 else count for count in counts]
        total = sum(count for count in asked if 1 <= count <= PARTITIONS_MAX)
        if total > PARTITIONS_MAX:
            message = f"The topics of one request may have {PARTITIONS_MAX} partitions in all, not {total}."
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)

    def create(self, new: TopicSpec, *, validate_only: bool = False, until: float = math.inf) -> Topic:
        """Create a topic, or only check that it could be created; returns it as it is, or would be.

        Completes the deletion of a former topic of that name first, until `until` (monotonic seconds) at most. Raises
        KafkaError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG,
        TOPIC_ALREADY_EXISTS, REQUEST_TIMED_OUT. When it returns, every worker finds the topic.
        """
        self.check_available(new.name)
        row = self._row(new)
        if not validate_only:
            self._create(row, until)
            self.refresh()
            topic = self._by_name.get(new.name)
            if topic is not None and id_text(topic.id) == row.id:
                return topic
        return self._topic(row)

    def alter(self, topic: Topic, change: Callable[[TopicRow], TopicRow]) -> Topic:
        """Replace configs, named ones and assignment by those of the row that `change` returns; returns the topic.

        `change` may be called more than once. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted or
        created again, and what `change` raises.
        """
        row = self._store.alter(topic.name, id_text(topic.id), change)
        self.refresh()
        return self._topic(row)

    def add_partitions(
        self, topic: Topic, change: Callable[[TopicRow], TopicRow], *, validate_only: bool = False
    ) -> Topic:
        """Add the partitions that the row returned by `change` has more, or only check; returns the topic with them.

        `change` may be called more than once. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted or
        created again, INVALID_CONFIG (format `batch` over streams that exist already), and what `change` raises.
        """
        if validate_only:
            return self._topic(change(topic.row))
        row = self._store.add_partitions(topic.name, id_text(topic.id), change)
        self.refresh()
        return self._topic(row)

    def delete(self, topics: Sequence[Topic], until: float = math.inf) -> list[KafkaError | None]:
        """Delete topics of different names with their records; returns for each what prevented it.

        UNKNOWN_TOPIC_OR_PARTITION: it is gone already. When this returns no worker finds a topic that was deleted, and
        its logs take no records. If `until` (monotonic seconds) comes, or Redis goes away, before all of them are
        deleted, the keeper completes the deletion.
        """
        ids = {topic.name: id_text(topic.id) for topic in topics}
        try:
            errors, steps = self._store.deletion.delete(ids)
        except KafkaError as error:
            return [error.without_frames()] * len(topics)
        with contextlib.suppress(KafkaError):
            self._work_until(paced(steps, self._clock), until)
        self.refresh()
        return [errors.get(topic.name) for topic in topics]

    def list_unfinished(self, state: Literal["creating", "deleting"]) -> list[TopicRow]:
        """Return the topics whose creation or deletion is not complete, as of now."""
        self.refresh()
        return [row for row in self._unfinished.values() if row.state == state]

    def finish_creation(self, row: TopicRow) -> bool:
        """Complete the creation of a topic that was interrupted; returns False if it was not, or others do that.

        Raises KafkaError INVALID_CONFIG (format `batch` over streams that exist already): the topic is deleted then.
        """
        return self._store.finish_creation(row)

    def delete_in_steps(self, marked: TopicRow) -> Iterator[None]:
        """Complete the deletion of a topic: one short step before each yield, and a pause for other clients after it.

        Raises KafkaError KAFKA_STORAGE_ERROR, StorageUnavailableError; the steps may be repeated from the beginning.
        """
        return paced(self._store.deletion.steps(marked), self._clock)

    def _create(self, row: TopicRow, until: float) -> None:
        while True:
            self._check_collisions(row.name)
            try:
                if self._store.create(row, self.epoch):
                    return
                self.refresh()
            except KafkaError as error:
                self.refresh()
                marked = self._in_state(row.name, "deleting")
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or marked is None:
                    raise
                if self._clock.monotonic() > until:
                    message = f"The deletion of the former topic '{row.name}' is not complete."
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None
                self._work_until(self.delete_in_steps(marked), until)

    def _work_until(self, steps: Iterator[None], until: float) -> None:
        while self._clock.monotonic() < until and next(steps, steps) is not steps:
            pass

    def _row(self, new: TopicSpec) -> TopicRow:
        partitions = self._settings.num_partitions if new.partitions == -1 else new.partitions
        if not 1 <= partitions <= PARTITIONS_MAX:
            message = f"Number of partitions must be between 1 and {PARTITIONS_MAX}, not {partitions}."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        if new.replication_factor < 1 and new.replication_factor != -1:
            message = f"Replication factor must be larger than 0, or -1 for the default, not {new.replication_factor}."
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        configs = {"storage.format": self._format(new.name)}
        configs |= {name: topic_config.normalize(name, value) for name, value in new.configs.items()}
        topic_config.check_together(configs, self._settings)
        # These shape the stored log: a later change of the broker's defaults must not change how it is read.
        if configs["storage.format"] == "batch":
            configs["offset.encoding"] = "dense"
        for name in FIXED_AT_CREATION:
            configs[name] = str(topic_config.value(name, configs, self._settings))
        assignment = None if new.assignment is None else [list(chunk) for chunk in new.assignment]
        return TopicRow(
            name=new.name,
            id=id_text(new_id()),
            partitions=partitions,
            configs=configs,
            named=sorted(FIXED_AT_CREATION & new.configs.keys()),
            assignment=assignment,
        )

    def _format(self, name: str) -> str:
        """Return the broker's format for a topic of that name (storage.format.topics, storage.format)."""
        for rule in filter(None, self._settings.storage_format_topics.split(",")):
            pattern, _, storage_format = rule.strip().rpartition("=")
            if fnmatchcase(name, pattern):
                return storage_format
        return self._settings.storage_format

    def _add(self, row: TopicRow) -> None:
        former = self._by_name.get(row.name)
        self._remove(row.name)
        if row.state != "live":
            self._unfinished[row.name] = row
            return
        topic = self._topic(row)
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self.ids[topic.name] = row.id
        if former is not None and former.id != topic.id:
            self._store.order.change()  # what was sent to the former one is sent again

    def _remove(self, name: str) -> None:
        self._unfinished.pop(name, None)
        topic = self._by_name.pop(name, None)
        if topic is not None:
            self._by_id.pop(topic.id, None)
            self.ids.pop(name, None)

    def _topic(self, row: TopicRow) -> Topic:
        overrides = topic_config.readable(row.name, row.configs)
        config = self._config(overrides)
        return Topic(
            name=row.name,
            id=base64.urlsafe_b64decode(row.id + "=="),
            partitions=TopicPartitions(
                row.partitions,
                lambda index: self._partition_of(
                    row.name,
                    index,
                    row.id,
                    config.id_bits,
                    config.format,
                    config.min_insync_replicas - 1,
                    row.tag(index),
                ),
            ),
            overrides=overrides,
            config=config,
            named=row.named,
            assignment=row.assignment,
        )
