"""A partition's log for tests of scripts: plain redis-py, the scripts by EVALSHA, ids and offsets.

The client is typed Any: redis-py types its replies as unions over both of its protocols and both of its clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import redis

from korvet.log.packed import PackedLog, ProducerRow
from korvet.redis import scripts
from korvet.redis.scripts import Script
from korvet.topics.entry_ids import OFFSETS_END, id_of_end
from tests.support.append_scripts import Answer, Batch, VerdictCode, call_args
from tests.support.entry_ids import end_of_id
from tests.support.partition_state import change_log, log_of, producers_of

TOPIC_ID = "topic-id-1"
STREAM = "korvet:orders:0"
STATE = "{korvet:orders:0}:state"
MOVING = "{korvet:orders:0}:moving"
INDEX = "{korvet:orders:0}:index"
CLEAN = ("{korvet:orders:0}:clean:0", "{korvet:orders:0}:clean:1")
OPEN, ABORTED = TRANSACTIONS = ("{korvet:orders:0}:open", "{korvet:orders:0}:aborted")
SHARE = "{korvet:orders:0}:share"
SIDE_KEYS = (INDEX, MOVING, *CLEAN, *TRANSACTIONS, SHARE)
"""What a partition has besides its stream and its state."""
REGISTRY = "korvet:topics"
CHANGES = "{korvet:topics}:changes"
STEP_BYTES = 1 << 20
EPOCH = 7
"""The leader epoch of the worker that runs the scripts."""


def of_partition(key: str, partition: int) -> str:
    """Return the key of another partition than 0."""
    return key.replace("orders:0", f"orders:{partition}")


def run(client: Any, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
    """Run a script as any Redis client would."""
    return run_until(client, name, keys, args, lease_end_ms=0)


def run_until(client: Any, name: str, keys: Sequence[str], args: Sequence[Any], *, lease_end_ms: int) -> Any:
    """Run a script as a worker would whose lease ends then, by Redis' clock."""
    script = scripts.get(name)
    all_args = [*args, lease_end_ms] if script.leased else args
    try:
        return _evaluate(client, script, keys, all_args)
    except redis.exceptions.OutOfMemoryError:
        if script.when_full is None:
            raise
    return _evaluate(client, script.when_full, keys, all_args)


def _evaluate(client: Any, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
    try:
        return client.evalsha(script.sha, len(keys), *keys, *args)
    except redis.exceptions.NoScriptError:
        client.script_load(script.source)
        return client.evalsha(script.sha, len(keys), *keys, *args)


def now_ms(client: Any) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


class Appended(NamedTuple):
    """What an append script answered about one batch; outcome AGAIN: others' entries must be dealt with first."""

    outcome: bytes
    base: int = -1
    log_start: int = -1
    row_bytes: int = 0
    moved: int = 0


class Log:
    """The log of korvet:orders:0 as the scripts see it, in format `record`.

    `shared` is the number of fields that all records of an append have, which are said once (2 to 4); 0: each record
    says its own.
    """

    script = "log/append_record"

    def __init__(self, client: Any, bits: int = 10, shared: int = 2) -> None:
        self.client = client
        self.bits = bits
        self.shared = shared
        self.create()

    def create(self) -> None:
        """Create the partition."""
        args = [TOPIC_ID, 1, now_ms(self.client) + 10**9, "adopt"]
        assert run(self.client, "partition/create", (STATE, *SIDE_KEYS, STREAM), args) == 0

    def append(
        self, *values: bytes | str, topic_id: str = TOPIC_ID, leader_epoch: int = EPOCH, **of_batch: Any
    ) -> Appended:
        """Append records of these values, which are one batch (see `batch`); raises its error."""
        batch = self.batch(*values, **of_batch)
        [appended] = self.append_all(batch, topic_id=topic_id, leader_epoch=leader_epoch)
        if isinstance(appended, Exception):
            raise appended
        return appended

    def append_all(
        self, *batches: Batch, topic_id: str = TOPIC_ID, leader_epoch: int = EPOCH
    ) -> list[Appended | redis.ResponseError]:
        """Append batches by one call; return what became of each, one AGAIN if nothing was done."""
        keys = [STREAM, STATE, INDEX]
        if any(batch.is_transactional for batch in batches):
            keys += TRANSACTIONS
        answer = Answer.read(
            run(self.client, self.script, keys, call_args(topic_id, leader_epoch, self.bits, batches))
        )
        if not answer.verdicts:
            return [Appended(b"AGAIN", moved=answer.moved)]
        return [self._appended(answer, *verdict) for verdict in answer.verdicts]

    @staticmethod
    def _appended(answer: Answer, code: VerdictCode, value: int) -> Appended | redis.ResponseError:
        if code == VerdictCode.MEMORY_FULL:
            return redis.OutOfMemoryError()
        if code > VerdictCode.VERIFY:
            return redis.ResponseError(f"{code.name} {value}")
        return Appended(code.name.encode(), value, answer.log_start, answer.row_bytes, answer.moved)

    def batch(
        self, *values: bytes | str, size: int = 100, count: int | None = None, **of_batch: Any
    ) -> Batch:
        """Return one batch of records of these values, or of `count` of them, as the script takes it."""
        fields, args = self._records(values)
        return Batch(args, len(values) if count is None else count, size, fields, **of_batch)

    def _records(self, values: Sequence[bytes | str]) -> tuple[int, list[Any]]:
        if self.shared == 0:
            return 0, [arg for value in values for arg in (2, "value", value)]
        names = ["value", "timestamp", "key", "header.a"][: self.shared]
        return self.shared, names + [arg for value in values for arg in (value, "5", "k", "h")[: self.shared]]

    def appended(self, *values: bytes | str, **options: Any) -> int:
        """Append, expect that to succeed, and return the base offset."""
        appended = self.append(*values, **options)
        assert appended.outcome == b"APPENDED"
        return appended.base

    def renumber(
        self, limit: int = 1000, step_bytes: int = STEP_BYTES, leader_epoch: int = EPOCH
    ) -> list[Any]:
        """Do one step."""
        args = [TOPIC_ID, leader_epoch, self.bits, limit, step_bytes, STREAM]
        reply: list[Any] = run(self.client, "log/renumber", (STREAM, STATE, MOVING, INDEX, SHARE), args)
        return reply

    def settle(self, limit: int = 1000) -> int:
        """Do all steps; return how many entries got new offsets."""
        moved = 0
        for _ in range(10_000):
            step_moved, more, _ = self.renumber(limit)
            moved += step_moved
            if not more:
                return int(moved)
        raise AssertionError("the log does not settle")

    def external(self, entry_id: str, value: str, *fields: str) -> str:
        """XADD as anybody may; return the id."""
        made: bytes = self.client.execute_command("XADD", STREAM, entry_id, "value", value, *fields)
        return made.decode()

    def state(self) -> dict[str, str]:
        """Return the fields that are texts; the packed ones are `log` and `producers`."""
        held = self.client.hgetall(STATE).items()
        packed = {b"log", b"claim"}
        return {
            name.decode(): value.decode() for name, value in held if name not in packed and not name.isdigit()
        }

    @property
    def log(self) -> PackedLog:
        return log_of(self.client, STATE)

    def change(self, **counters: int) -> None:
        """Set counters of the log as no script does."""
        change_log(self.client, STATE, **counters)

    @property
    def producers(self) -> dict[int, ProducerRow]:
        return producers_of(self.client, STATE)

    def next(self) -> int:
        return self.log.next_offset

    def offsets(self) -> list[int]:
        """Return the offsets of all entries; fails where an id is none."""
        result = []
        for entry_id, _ in self.client.xrange(STREAM):
            end = end_of_id(entry_id, self.bits)
            assert end is not None
            result.append(end - 1)
        assert all(offset < OFFSETS_END for offset in result)
        return result

    def values(self) -> list[str]:
        return [fields[b"value"].decode() for _, fields in self.client.xrange(STREAM)]

    def id_of(self, offset: int) -> str:
        return id_of_end(offset + 1, self.bits)

    def last_id(self) -> str:
        made: bytes = self.client.xinfo_stream(STREAM)["last-generated-id"]
        return made.decode()


class BatchLog(Log):
    """The same log in format `batch`; a batch is its values, joined, for the scripts never look into one."""

    script = "log/append_batch"

    def __init__(self, client: Any) -> None:
        super().__init__(client, bits=0)

    def _records(self, values: Sequence[bytes | str]) -> tuple[int, list[Any]]:
        texts = [value if isinstance(value, bytes) else value.encode() for value in values]
        return 0, [b"|".join(texts)]

    def expel(self, limit: int = 1000) -> list[Any]:
        """Do one step."""
        reply: list[Any] = run(self.client, "log/expel", (STREAM, STATE), [TOPIC_ID, limit])
        return reply

    def settle(self, limit: int = 1000) -> int:
        """Do all steps; return how many entries were removed."""
        removed = 0
        for _ in range(10_000):
            step_removed, more, _ = self.expel(limit)
            removed += step_removed
            if not more:
                return int(removed)
        raise AssertionError("the log does not settle")

    def batches(self) -> list[tuple[bytes, list[str]]]:
        return [
            (entry_id, fields[b"batch"].decode().split("|"))
            for entry_id, fields in self.client.xrange(STREAM)
        ]

    def offsets(self) -> list[int]:
        result: list[int] = []
        for entry_id, values in self.batches():
            ms, end = entry_id.split(b"-")
            assert ms == b"0"
            result += range(int(end) - len(values), int(end))
        return result

    def values(self) -> list[str]:
        return [value for _, values in self.batches() for value in values]


def contents(client: Any, keys: Iterable[str | bytes]) -> list[Any]:
    """Return keys byte for byte, in one round trip; hashes as fields, which lie in no order."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hgetall(key).dump(key)
        replies = pipeline.execute(raise_on_error=False)
    return [
        fields if isinstance(fields, dict) and fields else dump
        for fields, dump in zip(replies[::2], replies[1::2], strict=True)
    ]


@contextmanager
def unchanged(client: Any) -> Iterator[None]:
    """Expect that nothing is written: every key stays byte for byte."""
    keys = sorted(client.keys())
    before = contents(client, keys)
    yield
    assert sorted(client.keys()) == keys
    assert contents(client, keys) == before


@contextmanager
def refused(client: Any, error: str) -> Iterator[None]:
    """Expect that a script answers with an error that matches, and writes nothing."""
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        yield


@contextmanager
def memory_left(client: Any, left_bytes: int) -> Iterator[None]:
    """Give the server that much more memory than it has in use, which changes by itself; if negative, next to none."""
    in_use = client.info("memory")["used_memory"]
    client.config_set("maxmemory", in_use + left_bytes if left_bytes >= 0 else 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def nodes_of(client: Any, entries: int) -> Iterator[None]:
    """Set how many entries a node of a stream has: only whole nodes are freed."""
    client.config_set("stream-node-max-entries", entries)
    try:
        yield
    finally:
        client.config_set("stream-node-max-entries", 100)


@contextmanager
def announced(client: Any, channel: str, *messages: bytes) -> Iterator[Any]:
    """Expect these messages on a channel, in their order; gives who listens, for those that are not known before."""
    with client.pubsub() as listener:
        listener.ssubscribe(channel)
        assert listener.get_message(timeout=10)["type"] == "ssubscribe"
        yield listener
        for message in messages:
            assert listener.get_message(timeout=10)["data"] == message


class Saved:
    """All that a server holds, to restore in one round trip what took many to make."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._content = {key: client.dump(key) for key in client.scan_iter()}

    def restore(self) -> None:
        """Restore it, and delete all else."""
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.flushdb()
            for key, content in self._content.items():
                pipeline.restore(key, 0, content)
            pipeline.execute()
