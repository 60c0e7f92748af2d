"""Transactional ids in Redis: every transition is one script under lua/transaction, on the one key of the id.

What is stored and cannot be read is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from korvet.errors import KafkaError
from korvet.groups.schedule import Schedule
from korvet.protocol.types import TopicPartition
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import Arg, Reply, checked, listed, malformed, parsed, time_ms
from korvet.redis.scripts import Script
from korvet.topics.types import Partition
from korvet.transactions.types import AddedPartition, PreparedTransaction, ProducerIdentity, StoredTransaction
from korvet.turns import in_parts

_INIT = scripts.get("transaction/init")
_ADD = scripts.get("transaction/add")
_END = scripts.get("transaction/end")
_COMPLETE = scripts.get("transaction/complete")
_EXPIRE = scripts.get("transaction/expire")

_PARTITION, _GROUP = "p:", "g:"

LOOK_AGAIN_MS = 60_000
"""How long an id is not looked at whose deadline a process may have taken along that died: readers wait for it."""

_PAGE = 500
"""Transactional ids of one round trip: a millisecond of Redis."""


class TransactionStore:
    """The transactional ids of one namespace. Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self.schedule = Schedule(redis, keys.transactions, LOOK_AGAIN_MS)
        """The list of transactional ids, which gets the deadlines that transitions make a little later."""

    def init(
        self, transactional_id: str, timeout_ms: int, asked: ProducerIdentity, new_producer_id: int
    ) -> ProducerIdentity | PreparedTransaction:
        """Return the next identity of a producer, or what has to be completed before.

        Raises KafkaError by the names that lua/transaction/init.lua lists.
        """
        args = (timeout_ms, asked.producer_id, asked.epoch, new_producer_id)

        def run(listed_ms: int) -> list[Reply]:
            return self._run(_INIT, transactional_id, (listed_ms, *args))

        reply = self.schedule.create(transactional_id, run)
        return self._prepared(transactional_id, reply) or _identity(reply)

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[Partition],
        groups: Sequence[str],
        *,
        verify_only: bool,
    ) -> int | PreparedTransaction:
        """Return the number of the transaction that has these, or what has to be completed before.

        Raises KafkaError by the names that lua/transaction/add.lua lists.
        """
        args: list[Arg] = ["verify" if verify_only else "add", *producer]
        for partition in partitions:
            args.append(_PARTITION + self._keys.stream(partition.topic, partition.index))
            args.append(f"{partition.topic_id}:{partition.tag}" if partition.tag else partition.topic_id)
        for group in groups:
            args += (_GROUP + group, "")
        reply = self._run(_ADD, transactional_id, args)
        prepared = self._prepared(transactional_id, reply)
        if prepared is not None:
            return prepared
        _, due_ms, number = cast("tuple[bytes, int, int]", tuple(reply))
        self.schedule.lower_soon(transactional_id, due_ms)
        return number

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        new_producer_id: int,
        *,
        commit: bool,
        bumps_epoch: bool,
    ) -> ProducerIdentity | PreparedTransaction:
        """Return the producer's identity for its next transaction, or what has to be completed before.

        Raises KafkaError by the names that lua/transaction/end.lua lists.
        """
        args = (*producer, "commit" if commit else "abort", int(bumps_epoch), new_producer_id)
        reply = self._run(_END, transactional_id, args)
        return self._prepared(transactional_id, reply) or _identity(reply)

    def complete(self, transactional_id: str, number: int) -> None:
        """Complete a transaction whose markers are written, unless somebody has done that."""
        key = self._keys.transaction(transactional_id)
        [reply] = self._redis.scripts([(_COMPLETE, (key,), (number,))])
        checked(key, reply)

    def expire(
        self, transactional_ids: Sequence[str], expiration_ms: int
    ) -> list[int | PreparedTransaction | KafkaError]:
        """Do what is due about each id.

        Returns for each when (ms) something is due again, NOT_THERE if there is none (any more), what has to be
        completed before, or its error.
        """
        keys = [self._keys.transaction(item) for item in transactional_ids]
        replies = self._redis.scripts([(_EXPIRE, (key,), (expiration_ms,)) for key in keys])
        return [
            parsed(key, "a deadline", reply, partial(self._expired, transactional_id))
            for transactional_id, key, reply in zip(transactional_ids, keys, replies, strict=True)
        ]

    def names(self) -> Iterator[list[str]]:
        """Yield all transactional ids in pages, each small enough for one round trip about all of its ids."""
        for page in self._redis.scan_sorted_set(self._keys.transactions, _PAGE):
            yield [decode_group_id(name.decode("utf-8", "replace")) for name in page]

    def describe(self, transactional_ids: Sequence[str]) -> list[StoredTransaction | KafkaError | None]:
        """Return each as it is now, all of its data of one moment; None: it does not exist."""
        result = []
        for chunk in in_parts(transactional_ids, _PAGE):
            keys = [self._keys.transaction(item) for item in chunk]
            replies = self._redis.pipeline([("HGETALL", key) for key in keys])
            result += [
                parsed(key, "a field", reply, self._described)
                for key, reply in zip(keys, replies, strict=True)
            ]
        return result

    def now_ms(self) -> int:
        return time_ms(self._redis.node_of(self._keys.transactions).call("TIME"))

    def _run(self, script: Script, transactional_id: str, args: Sequence[Arg]) -> list[Reply]:
        key = self._keys.transaction(transactional_id)
        [reply] = self._redis.scripts([(script, (key,), args)])
        return listed(key, reply)

    def _prepared(self, transactional_id: str, reply: Sequence[Reply]) -> PreparedTransaction | None:
        """Return the transaction that a script wants to have completed, None if it answers otherwise."""
        if reply[0] != b"PREPARED":
            return None
        try:
            _, due_ms, then_id, then_epoch, by_id, by_epoch, number, commit, *parts = reply
            fields = cast("list[bytes]", parts)
            partitions, groups = self._parts(dict(zip(fields[::2], fields[1::2], strict=True)))
            prepared = PreparedTransaction(
                ProducerIdentity(int(cast("bytes", then_id)), cast("int", then_epoch)),
                ProducerIdentity(int(cast("bytes", by_id)), cast("int", by_epoch)),
                cast("int", number),
                commit == 1,
                partitions,
                groups,
            )
        except ValueError as error:
            raise malformed(self._keys.transaction(transactional_id), "a field") from error
        # Also for this process: it may die before it has completed the transaction.
        self.schedule.lower_soon(transactional_id, cast("int", due_ms))
        return prepared

    def _expired(self, transactional_id: str, reply: Reply) -> int | PreparedTransaction:
        if isinstance(reply, int):
            return reply
        prepared = self._prepared(transactional_id, cast("list[Reply]", reply))
        if prepared is None:
            raise ValueError(reply)
        return prepared

    def _described(self, flat: Sequence[bytes]) -> StoredTransaction | None:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if not fields:
            return None
        partitions, groups = self._parts(fields)
        return StoredTransaction(
            state=fields[b"state"].decode(),
            identity=ProducerIdentity(int(fields[b"producer_id"]), int(fields[b"epoch"])),
            timeout_ms=int(fields[b"timeout_ms"]),
            started_ms=int(fields[b"started"]) or -1,
            partitions=partitions,
            groups=groups,
        )

    def _parts(self, fields: Mapping[bytes, bytes]) -> tuple[list[AddedPartition], list[str]]:
        """Return the partitions and the groups among the fields of a hash; raises ValueError."""
        partitions, groups = [], []
        for field, value in fields.items():
            name = field[len(_PARTITION) :]
            if field.startswith(_PARTITION.encode()):
                place = self._keys.parse_stream(name)
                if place is None:
                    raise ValueError(field)
                topic_id, _, tag = value.decode().partition(":")
                partitions.append(AddedPartition(TopicPartition(*place), topic_id, tag))
            elif field.startswith(_GROUP.encode()):
                groups.append(name.decode())
        return sorted(partitions), sorted(groups)


def _identity(reply: Sequence[Reply]) -> ProducerIdentity:
    _, producer_id, epoch = cast("tuple[bytes, bytes, int]", tuple(reply))
    return ProducerIdentity(int(producer_id), epoch)
