"""The registry of topics in Redis: rows, how they are created and changed, and the feed of changes.

A row that cannot be read is no topic: it is logged once, and the others are served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.redis import scripts
from korvet.redis.client import Redis, RedisNode, ScriptCall
from korvet.redis.keys import TAG_LENGTH, Keys
from korvet.redis.replies import Arg, Reply, checked, errors_about, listed, malformed, value_of
from korvet.topics.deletion import TopicDeletion, side_keys
from korvet.topics.rows import CLAIM_MS, CLOCKS_MS, RegistryRows
from korvet.topics.types import TopicRow, decode, unclaimed
from korvet.turns import in_parts

_CREATE = scripts.get("partition/create")

RowChange: TypeAlias = Callable[[TopicRow], TopicRow]
"""Returns the row that replaces a row; may be called more than once, and may raise KafkaError."""

_ATTEMPTS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""

_CREATED_PER_STEP = 100
"""Partitions of one round trip: some 10 us of Redis each."""

_CLAIM_PAUSE_SECONDS = 0.02
"""Until a topic is looked at again whose partitions another process is adding to: that takes milliseconds."""


class TopicChanges(NamedTuple):
    """The changes of the registry up to `epoch`: rows created or changed, and names that are gone."""

    epoch: int
    upserts: list[TopicRow]
    deletions: list[str]


class TopicRows(NamedTuple):
    """All topics by name, at `epoch`; `unreadable` are the names of those whose rows cannot be read."""

    epoch: int
    rows: dict[str, TopicRow]
    unreadable: frozenset[str] = frozenset()


class TopicStore:
    """The registry of one namespace; `deletion` deletes topics from it.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._rows = RegistryRows(redis, keys)
        self.deletion = TopicDeletion(redis, keys)
        self._redis = redis
        self.order = redis.order
        self._keys = keys
        self._registry = keys.topics
        self._loaded_over: tuple[RedisNode, int] | None = None

    def create(self, row: TopicRow, known_epoch: int = 0) -> bool:
        """Create a topic: its row, which clients do not find yet, its partitions, and then the topic is live.

        `known_epoch` is that of a registry without topics whose names collide with this one. Returns False, with
        nothing done, if the feed no longer has the changes since then; that concerns names with `.` or `_`. Raises
        KafkaError TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION (a topic created since collides), INVALID_CONFIG
        (format `batch` over streams that exist already), REQUEST_TIMED_OUT. If Redis goes away meanwhile,
        `finish_creation` does the rest. With redis.placement=even the partitions get slot tags here, if this is a
        Redis Cluster.
        """
        row = msgspec.structs.replace(row, state="creating", tags="")
        # Without a cluster there is nothing to spread, and the documented names are better.
        if row.configs.get("redis.placement") == "even" and self._redis.is_cluster:
            row = self._with_tags(row, row.partitions)
        text = self._rows.create(row, known_epoch)
        if text is not None:
            self._finish_creation(row.name, text)
        return text is not None

    def finish_creation(self, row: TopicRow) -> bool:
        """Create what is missing of a topic whose creation was interrupted; returns False if others do that.

        Raises KafkaError INVALID_CONFIG as `create` does; the topic is deleted then.
        """
        text = self._rows.text(row.name)
        if text is None or self._decoded(row.name, text) != row:
            return False
        claimed = self._rows.claim(text, row)
        if isinstance(claimed, bytes):
            self._finish_creation(row.name, claimed)
        return isinstance(claimed, bytes)

    def _with_tags(self, row: TopicRow, count: int) -> TopicRow:
        """Return the row with slot tags for `count` partitions; those that have one keep it."""
        taken = [row.tag(index) for index in range(len(row.tags) // TAG_LENGTH)]
        more = self._redis.spread_tags(taken, max(count - len(taken), 0), f"{row.id} {len(taken)}")
        return msgspec.structs.replace(row, tags=row.tags + "".join(more))

    def _finish_creation(self, name: str, text: bytes) -> None:
        try:
            row, text = self._create_partitions(name, text, 0)
        except KafkaError as error:
            if error.code == ErrorCode.INVALID_CONFIG:
                self._withdraw(name, text)
            raise
        live = unclaimed(msgspec.structs.replace(row, state="live"))
        if self._rows.replace(name, text, live):
            return
        now = self._rows.text(name)
        done = now and self._decoded(name, now)
        if not done or (done.id, done.state) != (row.id, "live"):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The creation of topic '{name}' took too long.")

    def _withdraw(self, name: str, text: bytes) -> None:
        """Delete a topic that cannot be created; if that is interrupted, the keeper completes it as any deletion."""
        row = self._decoded(name, text)
        with contextlib.suppress(KafkaError):
            marked = row and self.deletion.mark(row, text)
            for _ in self.deletion.steps(marked) if marked else ():
                pass

    def alter(self, name: str, topic_id: str, change: RowChange) -> TopicRow:
        """Replace configs, named ones and assignment by those of the row that `change` returns; returns the new row.

        `change` is called again if another process changed the row meanwhile; an equal row is not written. Raises
        KafkaError UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id).
        """
        for _ in range(_ATTEMPTS_MAX):
            row, text = self._live(name, topic_id)
            wanted = change(row)
            changed = msgspec.structs.replace(
                row, configs=wanted.configs, named=wanted.named, assignment=wanted.assignment
            )
            if changed == row or self._rows.replace(name, text, changed):
                return changed
        raise self._keeps_changing(name)

    def add_partitions(self, name: str, topic_id: str, change: RowChange) -> TopicRow:
        """Give a topic more partitions, all at once for clients: `change` sets their number and assignment.

        While another process adds some, this waits. If Redis goes away meanwhile, none was added; what exists of them
        already is for the next one that adds partitions, or goes with the topic. Raises KafkaError as `alter` does, and
        INVALID_CONFIG (format `batch` over streams that exist already), REQUEST_TIMED_OUT.
        """
        deadline = self._clock.monotonic() + (CLAIM_MS + CLOCKS_MS) / 1000 + 1
        while True:
            row, text = self._live(name, topic_id)
            count = change(row).partitions
            if count <= row.partitions:
                return row
            growing = msgspec.structs.replace(row, growing=max(count, row.growing))
            if row.tags:
                growing = self._with_tags(growing, growing.growing)
            claimed = self._rows.claim(text, growing)
            if isinstance(claimed, bytes):
                return self._grow(name, topic_id, claimed, count, change)
            if self._clock.monotonic() > deadline:
                message = f"The number of partitions of topic '{name}' is being changed."
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
            if claimed == 1:
                self._clock.sleep(_CLAIM_PAUSE_SECONDS)

    def _grow(self, name: str, topic_id: str, text: bytes, count: int, change: RowChange) -> TopicRow:
        try:
            claimed, _ = self._create_partitions(name, text, count)
        except KafkaError as error:
            if error.code == ErrorCode.INVALID_CONFIG:
                # Every call was answered: none is under way, so others need not wait for the end of the claim.
                with contextlib.suppress(KafkaError):
                    row, text = self._live(name, topic_id)
                    self._rows.replace(name, text, unclaimed(row))
            raise
        for _ in range(_ATTEMPTS_MAX):
            try:
                row, text = self._live(name, topic_id)
            except KafkaError as error:
                if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    # Deleted meanwhile, perhaps before some of the new ones were created, which no client has seen.
                    more = [(claimed, index) for index in range(claimed.partitions, claimed.growing)]
                    for _ in self.deletion.clear(more):
                        pass
                raise
            if row.claim != claimed.claim:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Adding partitions to '{name}' took too long.")
            wanted = change(row)
            grown = unclaimed(
                msgspec.structs.replace(
                    row,
                    partitions=count,
                    assignment=wanted.assignment,
                    growing=row.growing if row.growing > count else 0,
                )
            )
            if self._rows.replace(name, text, grown):
                return grown
        raise self._keeps_changing(name)

    def _create_partitions(self, name: str, text: bytes, count: int) -> tuple[TopicRow, bytes]:
        """Create the partitions of a row on which this process has a claim: all of them, or those up to `count`.

        Returns the row and its text with the claim by which it was done.
        """
        for _ in range(_ATTEMPTS_MAX):
            row = self._decoded(name, text)
            if row is None:
                raise malformed(self._registry, f"the row of {name}")
            higher = 0
            indexes = range(row.partitions, count) if count else range(row.partitions)
            for chunk in in_parts(indexes, _CREATED_PER_STEP):
                higher = max(higher, *self._create_some(row, chunk))
            if not higher:
                return row, text
            # A failover has taken topics from the registry, and their epochs, and left this partition.
            claimed = self._rows.claim(text, row, lowest=higher + 1)
            if not isinstance(claimed, bytes):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The row of {name} has changed.")
            text = claimed
        raise self._keeps_changing(name)

    def _create_some(self, row: TopicRow, indexes: Sequence[int]) -> list[int]:
        """Create partitions; returns for each the higher claim of one that is there, 0 if it is this topic's."""
        existing = "refuse" if row.configs.get("storage.format") == "batch" else "adopt"
        args: list[Arg] = [row.id, row.claim, row.claim_until, existing]
        names = self._keys
        calls: list[ScriptCall] = []
        for index in indexes:
            of = (row.name, index, row.tag(index))
            calls.append((_CREATE, (names.state(*of), *side_keys(names, *of), names.stream(*of)), args))
        replies = self._redis.scripts(calls)
        # If one may still be done, that decides: the claim stays.
        replies.sort(key=lambda reply: not isinstance(reply, StorageUnavailableError))
        return [self._int(checked(names.state(row.name, indexes[0]), reply)) for reply in replies]

    def _live(self, name: str, topic_id: str) -> tuple[TopicRow, bytes]:
        """Return the row of a topic and its text; raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        text = self._rows.text(name)
        row = None if text is None else self._decoded(name, text)
        if text is None or row is None or row.id != topic_id or row.state != "live":
            message = f"there is no topic {name} of id {topic_id}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return row, text

    def _decoded(self, name: str, text: bytes) -> TopicRow | None:
        return decode(self._registry, name.encode(), text)

    def _keeps_changing(self, name: str) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self._registry}: the row of {name} keeps changing"
        )

    def load(self) -> TopicRows:
        """Return all topics and the epoch to ask for changes from."""
        over = self._connection()
        newest, rows = self._transaction(
            ("ZREVRANGE", self._keys.topic_changes, 0, 0, "WITHSCORES"),
            ("HGETALL", self._registry),
        )
        flat = cast("list[bytes]", listed(self._registry, rows))
        self._loaded_over = over
        read = (decode(self._registry, name, row) for name, row in zip(flat[::2], flat[1::2], strict=True))
        rows_by_name = {row.name: row for row in read if row is not None}
        names = {name.decode("utf-8", "backslashreplace") for name in flat[::2]}
        return TopicRows(self._epoch(newest), rows_by_name, frozenset(names.difference(rows_by_name)))

    def changes(self, epoch: int) -> TopicChanges | None:
        """Return the changes since `epoch`; None if they are too many or too long ago to tell, so that `load` is due.

        It is due on another connection than that of the last load, too: a Redis that took over the name may lack the
        last changes, and count others by the same epochs.
        """
        feed = self._keys.topic_changes
        newest, dropped, changed = self._transaction(
            ("ZREVRANGE", feed, 0, 0, "WITHSCORES"),
            ("ZSCORE", feed, ""),
            ("ZRANGEBYSCORE", feed, f"({epoch}", "+inf"),
        )
        names = cast("list[bytes]", listed(feed, changed))
        now = self._epoch(newest)
        if self._loaded_over not in (None, self._connection()):
            return None
        # An epoch from the future: the feed was lost or restored from an older copy.
        if now < epoch or (dropped is not None and self._int(dropped) > epoch):
            return None
        if not names:
            return TopicChanges(now, [], [])
        with errors_about(self._registry):
            rows = listed(self._registry, self._redis.call("HMGET", self._registry, *names))
        upserts, deletions = [], []
        for name, text in zip(names, cast("list[bytes | None]", rows), strict=True):
            row = None if text is None else decode(self._registry, name, text)
            if row is None:
                deletions.append(name.decode("utf-8", "backslashreplace"))
            else:
                upserts.append(row)
        return TopicChanges(now, upserts, deletions)

    def _connection(self) -> tuple[RedisNode, int]:
        """Return what is another one whenever the registry is read over another connection."""
        node = self._redis.node_of(self._registry)
        return node, node.connections

    def _transaction(self, *commands: tuple[Arg, ...]) -> list[Reply]:
        with errors_about(self._registry):
            return [value_of(reply) for reply in self._redis.transaction(commands)]

    def _epoch(self, newest: Reply) -> int:
        scored = listed(self._keys.topic_changes, newest)
        return self._int(scored[1]) if scored else 0

    def _int(self, reply: Reply) -> int:
        try:
            return int(cast("bytes", reply))
        except (ValueError, TypeError) as error:
            raise malformed(self._registry, "a number") from error
