"""Committed offsets: OffsetStore keeps them in Redis, CommittedOffsets has the rules of a commit.

Those that transactions commit (KIP-98, KIP-447) wait in a hash of the group, and count once the transaction is
committed. The number of a transaction stays there when it has ended (lua/group/end_transaction.lua): an end may come
twice, and what comes after it is refused.

A row carries the id of its topic. It counts only while the partition's state, the fence of its log, has the same id:
offsets of a deleted topic never become those of a new one with the same name. If the state cannot be read because its
node of a cluster is away, the id in the registry counts. The field of a row is the stream's name without a slot tag
(keys.py). A row of a partition that has one carries it, so that state and stream are found without the registry.

Deletions are optimistic: lua/group/delete.lua and lua/group/forget.lua get what the caller has read, and do nothing if
that has changed. Redis groups are deleted before their offsets, so an interrupted deletion leaves
none that nobody would find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.mirror import CommitMirror
from korvet.groups.offset_reads import Committed, OffsetReads, OffsetRow, committed_of, tag_of
from korvet.groups.schedule import Schedule
from korvet.groups.types import EMPTY
from korvet.protocol.types import TopicPartition
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, listed, parsed, time_ms, value_of
from korvet.redis.scripts import Script
from korvet.topics.registry import Topic, TopicRegistry, check_name
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

_COMMIT = scripts.get("group/commit")
_COMMIT_TRANSACTION = scripts.get("group/commit_transaction")
_END_TRANSACTION = scripts.get("group/end_transaction")
_EXPIRE_TRANSACTIONS = scripts.get("group/expire_transactions")
_DELETE = scripts.get("group/delete")
_FORGET = scripts.get("group/forget")

_PREVENTED = {
    0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the committed one is that of another topic"),
    -1: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "another commit came before this one, which is late"),
    -2: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "Redis' memory is full, and this takes more than the last one"),
}

_DELETE_TRIES_MAX = 5
"""Tries of a deletion while offsets are committed under it."""

_TRANSACTIONS_PER_STEP = 500
"""Ended transactions of a group that one script looks at: some 0.3 ms of Redis."""

DELETED_PER_STEP = 1000
"""Offsets that one script deletes: some 3 us of Redis each."""

ANY_ROW = b""
"""In place of a row: delete it as it is."""


class Committer(NamedTuple):
    """Who commits: a member of the group in its generation, or no member at all (generation -1, empty ids)."""

    group: str
    generation: int = -1
    member: str = ""
    instance: str = ""
    knows_epochs: bool = True  # whether its client may be a member of the consumer protocol (KIP-848)


class ProducerTransaction(NamedTuple):
    """A transaction of a producer, by its number (korvet/transactions)."""

    producer_id: int
    epoch: int
    number: int


class Commit(NamedTuple):
    """The offset of the next record to read, the leader epoch of the last one read (-1: unknown), and a note.

    `retention_ms` is how long the client wants it kept from now on, None: as long as the broker does.
    """

    partition: Partition
    offset: int
    epoch: int
    metadata: str
    retention_ms: int | None = None


class OffsetToCommit(NamedTuple):
    """A Commit for a partition that is not resolved yet."""

    offset: int
    epoch: int
    metadata: str
    retention_ms: int | None = None


class GroupVersion(NamedTuple):
    """State, generation and time (ms) of the last change of a group: a deletion does nothing if they have changed.

    Where there is no group, but a transaction has ended that was to commit for it, there is only the time.
    """

    state: bytes = b""
    generation: bytes = b""
    since: bytes = b""
    protocol_type: bytes = b""

    @property
    def is_empty(self) -> bool:
        return self.state in (b"", EMPTY.encode())


class DeletedOffsets(NamedTuple):
    """`done`: the group had not changed. How many offsets were deleted, and whether the group was too."""

    done: bool
    offsets: int
    group: bool


class OffsetStore(OffsetReads):
    """What OffsetReads reads is written here.

    Every method raises StorageUnavailableError if Redis is away, and KafkaError KAFKA_STORAGE_ERROR.
    """

    def __init__(self, redis: Redis, keys: Keys, *, mirror: bool, clock: Clock = CLOCK) -> None:
        """`mirror` is group.mirror: whether commits move Redis consumer groups, and deletions delete them."""
        super().__init__(redis, keys)
        self._mirror = CommitMirror(redis, keys, enabled=mirror, clock=clock)
        self._schedule = Schedule(redis, keys.groups, clock=clock)

    def commit(
        self,
        committer: Committer,
        commits: Sequence[Commit],
        not_after_ms: int = 0,
        transaction: ProducerTransaction | None = None,
        *,
        replaces: bool = False,
    ) -> list[KafkaError | None]:
        """Commit in one script, or keep what the transaction is to commit; returns for each what prevented it.

        That is one of _PREVENTED. One that `replaces` does so also where the offset there is of another topic id.

        Raises KafkaError, and nothing is done: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION, REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND (a generation of no group);
        of a transaction also INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE (it has ended).
        """
        script = _COMMIT if transaction is None else _COMMIT_TRANSACTION
        args: list[Arg] = [
            committer.generation,
            committer.member,
            committer.instance,
            not_after_ms,
            int(replaces),
        ]
        args += transaction or (int(committer.knows_epochs),)
        for partition, offset, epoch, metadata, retention_ms in commits:
            row = OffsetRow(offset, epoch, metadata, partition.topic_id, retention_ms, partition.tag)
            field = self._keys.stream(partition.topic, partition.index)
            # The time stands last, for the script to write it: only Redis knows it.
            args += (field, partition.topic_id, msgspec.json.encode(row)[:-1] + b',"ms":')

        def run(listed_ms: int) -> list[Reply]:
            reply = self._run(script, committer.group, [committer.group, listed_ms, *args])
            return listed(self._keys.group_offsets(committer.group), reply)

        outcomes = cast("list[int]", self._schedule.create(committer.group, run))
        if transaction is None:
            done = (one[:2] for outcome, one in zip(outcomes, commits, strict=True) if outcome == 1)
            self.follow(committer.group, done)
        return [_prevented(outcome, one.partition) for outcome, one in zip(outcomes, commits, strict=True)]

    def end_transaction(
        self, group: str, transaction: ProducerTransaction, *, commit: bool
    ) -> dict[TopicPartition, Committed]:
        """Commit or drop what a transaction was to commit; returns what was committed, nothing if it had ended."""
        keys = (
            self._keys.group_state(group),
            self._keys.group_offsets(group),
            self._keys.group_pending(group),
        )

        def run(listed_ms: int) -> list[Reply]:
            args: list[Arg] = [listed_ms, *transaction, "commit" if commit else "abort"]
            [reply] = self._redis.scripts([(_END_TRANSACTION, keys, args)])
            return listed(keys[-1], reply)

        flat = cast("list[bytes]", self._schedule.create(group, run))
        return {
            TopicPartition(*at): committed_of(keys[1], row)
            for field, row in in_turns(zip(flat[::2], flat[1::2], strict=True))
            if (at := self._keys.parse_stream(field)) is not None
        }

    def have_transactions(self, groups: Sequence[str]) -> list[bool]:
        """Return which groups may have open or ended transactions, in one round trip."""
        replies = self._redis.pipeline([("EXISTS", self._keys.group_pending(group)) for group in groups])
        return [reply != 0 for reply in replies]

    def expire_transactions(self, group: str, silence_ms: int) -> None:
        """Forget the ended transactions of producers that were silent for `silence_ms`."""
        key = self._keys.group_pending(group)
        cursor: Arg = b"0"
        while True:
            [reply] = self._redis.scripts(
                [(_EXPIRE_TRANSACTIONS, (key,), (cursor, _TRANSACTIONS_PER_STEP, silence_ms))]
            )
            cursor, _ = cast("tuple[bytes, int]", listed(key, reply))
            if cursor == b"0":
                return

    def follow(self, group: str, offsets: Iterable[tuple[Partition, int]]) -> None:
        self._mirror.move(group, offsets)

    def flush(self) -> None:
        self._mirror.flush()
        self._schedule.flush()

    def versions(self, groups: Sequence[str]) -> list[GroupVersion | KafkaError]:
        keys = [self._keys.group_state(group) for group in groups]
        commands = [("HMGET", key, "state", "generation", "since", "protocol_type") for key in keys]
        replies = self._redis.pipeline(commands)
        return [parsed(key, "a field", reply, _version) for key, reply in zip(keys, replies, strict=True)]

    def now_ms(self) -> int:
        return time_ms(self._redis.node_of(self._keys.groups).call("TIME"))

    def delete_group(self, group: str) -> None:
        """Delete a group without members and its offsets; raises KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        key, what = self._keys.group_offsets(group), "the answer of lua/group/delete.lua"
        for _ in range(_DELETE_TRIES_MAX):
            reply, state = self._redis.pipeline(
                [("HGETALL", key), ("HGET", self._keys.group_state(group), "state")]
            )
            flat = cast("list[bytes]", listed(key, reply))
            fields = flat[::2]
            # If it has members, or is no group, nothing may be changed: the script says so.
            is_deleted = (bool(fields) or state is not None) and state in (None, EMPTY.encode())
            mark = self._schedule.mark(group) if is_deleted else 0
            streams = [
                self._keys.stream(*at, tag_of(row))
                for field, row in in_turns(zip(fields, flat[1::2], strict=True))
                if (at := self._keys.parse_stream(field)) is not None
            ]
            if is_deleted:
                self._mirror.destroy(group, streams)
            # Kept in no variable: the error and this frame would hold each other.
            if value_of(parsed(key, what, self._run(_DELETE, group, [group, *fields]), int)):
                self._mirror.destroy(group, streams)
                self._schedule.unlist(group, mark)
                return
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"the offsets of {group} keep changing")

    def delete(
        self,
        group: str,
        version: GroupVersion,
        rows: Mapping[TopicPartition, bytes],
        *,
        delete_empty_group: bool,
    ) -> DeletedOffsets:
        """Delete offsets whose rows are still these (or ANY_ROW), if the group is still at this version.

        Very many are deleted in steps, and the rest stays if the group changes between two of them. With
        `delete_empty_group` the group is deleted too if it has neither members nor offsets then.
        """
        left, offsets = list(rows), 0
        while len(left) > DELETED_PER_STEP:
            chunk, left = left[:DELETED_PER_STEP], left[DELETED_PER_STEP:]
            step = self._delete(group, version, {at: rows[at] for at in chunk}, "keep")
            offsets += step.offsets
            if not step.done:
                return step._replace(offsets=offsets)
        last = self._delete(
            group, version, {at: rows[at] for at in left}, "drop" if delete_empty_group else "keep"
        )
        return last._replace(offsets=offsets + last.offsets)

    def _delete(
        self, group: str, version: GroupVersion, rows: Mapping[TopicPartition, bytes], empty_group: str
    ) -> DeletedOffsets:
        args: list[Arg] = [empty_group, *version[:3]]
        for at, row in rows.items():
            args += (self._keys.stream(*at), row)
        streams = self._streams(group, rows)
        mark = self._schedule.mark(group) if empty_group == "drop" else 0
        self._mirror.destroy(group, streams)
        reply = self._run(_FORGET, group, args)
        done, offsets, dropped = cast("list[int]", listed(self._keys.group_offsets(group), reply))
        self._mirror.destroy(group, streams)
        if dropped:
            self._schedule.unlist(group, mark)
        return DeletedOffsets(done == 1, offsets, dropped == 1)

    def _streams(self, group: str, rows: Mapping[TopicPartition, bytes]) -> list[str]:
        unseen = [at for at, row in rows.items() if row == ANY_ROW]
        seen: dict[TopicPartition, bytes | None] = dict(rows)
        if unseen:
            key = self._keys.group_offsets(group)
            reply = self._redis.call("HMGET", key, *(self._keys.stream(*at) for at in unseen))
            seen.update(zip(unseen, cast("list[bytes | None]", listed(key, reply)), strict=True))
        return [self._keys.stream(*at, tag_of(row)) for at, row in seen.items()]

    def _run(self, script: Script, group: str, args: Sequence[Arg]) -> Reply:
        keys: tuple[str, ...] = (*self._keys.membership_of(group), self._keys.group_offsets(group))
        if script is not _COMMIT:
            keys += (self._keys.group_pending(group),)
        if script in (_DELETE, _FORGET):
            keys += (self._keys.group_assignments(group),)
        [reply] = self._redis.scripts([(script, keys, args)])
        return reply


def _version(fields: Sequence[bytes | None]) -> GroupVersion:
    return GroupVersion(*(field or b"" for field in fields))


def _prevented(outcome: int, partition: Partition) -> KafkaError | None:
    """Return the error of a partition by what lua/group/commit.lua returns for it."""
    code, why = _PREVENTED.get(outcome, (ErrorCode.NONE, ""))
    return KafkaError(code, f"offset of {partition.stream}: {why}") if code else None


class CommittedOffsets:
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError KAFKA_STORAGE_ERROR."""

    def __init__(self, store: OffsetStore, topics: TopicRegistry, settings: Settings) -> None:
        self._store = store
        self._topics = topics
        self._metadata_max = settings.offset_metadata_max_bytes

    def commit(
        self,
        committer: Committer,
        offsets: Sequence[PartitionRef[OffsetToCommit]],
        not_after_ms: int = 0,
        transaction: ProducerTransaction | None = None,
    ) -> list[KafkaError | None]:
        """Commit all offsets that can be, up to PARTITIONS_AT_ONCE in one script; returns for each what prevented it.

        Those of a `transaction` are kept until it ends.
        These are UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE, and what OffsetStore.commit returns. Raises KafkaError
        for all of them as that does, unless a script before has committed some: then it is what prevented the others.
        If no partition is known the group is not asked for. If one is named more than once, the last counts.
        """
        last = {(offset.topic, offset.partition): offset for offset in in_turns(offsets)}
        some_done = False

        def commit(commits: Sequence[Commit]) -> list[KafkaError | None]:
            nonlocal some_done
            try:
                prevented = self._store.commit(committer, commits, not_after_ms, transaction)
                self._replace(committer, commits, not_after_ms, transaction, prevented)
            except KafkaError as error:
                if not some_done:
                    raise
                return [error] * len(commits)
            some_done = True
            return prevented

        outcomes = dict(zip(last, self._topics.ask(list(last.values()), self._commit, commit), strict=True))
        return [outcomes[offset.topic, offset.partition] for offset in in_turns(offsets)]

    def fetch(self, asked: Sequence[tuple[str, TopicPartition]]) -> list[Committed | KafkaError | None]:
        """Return what each group has committed for a partition: None for nothing, an unknown topic or group."""
        valid = [one for one in in_turns(asked) if _is_valid(one[1])]
        outcomes = dict(zip(valid, self._store.fetch(valid, self._topics.ids), strict=True))
        return [outcomes.get(one) for one in asked]

    def finish(self, group: str, transaction: ProducerTransaction, *, commit: bool) -> None:
        """Commit the offsets of a transaction, or drop them. It may be done twice, and for a group that has none."""
        moved = []
        for at, row in self._store.end_transaction(group, transaction, commit=commit).items():
            # A topic that is deleted meanwhile has no Redis groups.
            with contextlib.suppress(KafkaError):
                _, partition = self._topics.partition(TopicRef(at.topic), at.partition)
                if partition.topic_id == row.topic_id:
                    moved.append((partition, row.offset))
        self._store.follow(group, moved)

    def _replace(
        self,
        committer: Committer,
        commits: Sequence[Commit],
        not_after_ms: int,
        transaction: ProducerTransaction | None,
        prevented: list[KafkaError | None],
    ) -> None:
        """Replace offsets of another topic id where this worker has the later one: it looks again which that is."""
        refused = [
            place
            for place, error in enumerate(prevented)
            if error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        if not refused:
            return
        self._topics.refresh()
        places = [
            place
            for place in refused
            if self._topics.ids.get((partition := commits[place].partition).topic) == partition.topic_id
        ]
        if not places:
            return
        chunk = [commits[place] for place in places]
        again = self._store.commit(committer, chunk, not_after_ms, transaction, replaces=True)
        for place, error in zip(places, again, strict=True):
            prevented[place] = error

    def _commit(self, asked: OffsetToCommit, _topic: Topic, partition: Partition) -> Commit:
        size = len(asked.metadata.encode())
        if size > self._metadata_max:
            message = f"metadata of {size} bytes is more than offset.metadata.max.bytes allows"
            raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE, message)
        return Commit(partition, *asked)


def _is_valid(partition: TopicPartition) -> bool:
    """Tell whether a topic can have that name: no other name is part of a key of a log."""
    try:
        check_name(partition.topic)
    except KafkaError:
        return False
    return partition.partition >= 0
