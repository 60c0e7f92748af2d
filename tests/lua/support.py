"""A partition's log for tests of scripts: plain redis-py, the scripts by EVALSHA, ids and offsets.

The client is typed Any: redis-py types its replies as unions over both of its protocols and both of its clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from korvet.redis.scripts import Script
from korvet.topics.entry_ids import OFFSETS_END, end_of_id, id_of_end

TOPIC_ID = "topic-id-1"
STREAM = "korvet:orders:0"
STATE = "{korvet:orders:0}:state"
PRODUCERS = "{korvet:orders:0}:producers"
MOVING = "{korvet:orders:0}:moving"
INDEX = "{korvet:orders:0}:index"
CLEAN = ("{korvet:orders:0}:clean:0", "{korvet:orders:0}:clean:1")
OPEN, ABORTED = TRANSACTIONS = ("{korvet:orders:0}:open", "{korvet:orders:0}:aborted")
SHARE = "{korvet:orders:0}:share"
SIDE_KEYS = (PRODUCERS, INDEX, MOVING, *CLEAN, *TRANSACTIONS, SHARE)
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


class Log:
    """The log of korvet:orders:0 as the scripts see it, in format `record`.

    `shared` is the number of fields that all records of an append have, which are said once: `value` and `timestamp`
    (2), `key` before them (3); 0: each record says its own.
    """

    script = "log/append"

    def __init__(self, client: Any, bits: int = 10, shared: int = 2) -> None:
        self.client = client
        self.bits = bits
        self.shared = shared
        fields = {"topic": TOPIC_ID, "next": "0", "start": "0", "bytes": "0", "max_timestamp": "-1"}
        client.hset(STATE, mapping=fields)

    def append(
        self, *values: bytes | str, topic_id: str = TOPIC_ID, leader_epoch: int = EPOCH, **of_batch: Any
    ) -> list[Any]:
        """Append records of these values, which are one batch (see `batch`); raises its error.

        Returns outcome, base offset, log start, Redis' clock and the bytes of a row of the index, and how many external
        entries were removed if any were.
        """
        batch = self.batch(*values, **of_batch)
        outcome, *rest = self.append_all(batch, topic_id=topic_id, leader_epoch=leader_epoch)
        if not rest or outcome == b"EXPEL":
            return [outcome, *rest]
        log_start, now_ms, removed, outcome, base, row_bytes = rest
        if isinstance(outcome, Exception):
            raise outcome
        return [outcome, base, log_start, now_ms, row_bytes, *([removed] if removed else [])]

    def append_all(
        self, *batches: Sequence[Any], topic_id: str = TOPIC_ID, leader_epoch: int = EPOCH
    ) -> list[Any]:
        """Append batches by one call; return the script's answer."""
        bits = [self.bits] if self.script == "log/append" else []
        args = [topic_id, leader_epoch, STREAM, *bits, *(arg for each in batches for arg in each)]
        keys = [STREAM, STATE, PRODUCERS, INDEX]
        if any(each[7] != "0" for each in batches):
            keys += TRANSACTIONS
        reply: list[Any] = run(self.client, self.script, keys, args)
        return reply

    def batch(
        self,
        *values: bytes | str,
        producer: int = -1,
        epoch: int = 0,
        sequence: int = 0,
        max_timestamp: int = 5,
        transaction: str = "0",
    ) -> list[Any]:
        """Return one batch of records of these values as the script takes it."""
        last = (sequence + len(values) - 1) % 2**31
        records = self._records(values)
        head = [producer, epoch, sequence, last, len(values), 100, max_timestamp, transaction]
        return [*head, len(records), *records]

    def _records(self, values: Sequence[bytes | str]) -> list[Any]:
        if self.shared == 3:
            return [3, "key", "value", "timestamp", *(arg for value in values for arg in ("k", value, "5"))]
        if self.shared == 2:
            return [2, "value", "timestamp", *(arg for value in values for arg in (value, "5"))]
        return [0, *(arg for value in values for arg in (2, "value", value))]

    def appended(self, *values: bytes | str, **options: Any) -> int:
        """Append, expect that to succeed, and return the base offset."""
        outcome, base, *_ = self.append(*values, **options)
        assert outcome == b"APPENDED"
        return int(base)

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
        return {name.decode(): value.decode() for name, value in self.client.hgetall(STATE).items()}

    def next(self) -> int:
        return int(self.state()["next"])

    def offsets(self) -> list[int]:
        """Return the offsets of all entries; fails where an id is none."""
        found = []
        for entry_id, _ in self.client.xrange(STREAM):
            end = end_of_id(entry_id, self.bits)
            assert end is not None
            found.append(end - 1)
        assert all(offset < OFFSETS_END for offset in found)
        return found

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

    def _records(self, values: Sequence[bytes | str]) -> list[Any]:
        texts = [value if isinstance(value, bytes) else value.encode() for value in values]
        return ["batch", b"|".join(texts)]

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
        found: list[int] = []
        for entry_id, values in self.batches():
            ms, end = entry_id.split(b"-")
            assert ms == b"0"
            found += range(int(end) - len(values), int(end))
        return found

    def values(self) -> list[str]:
        return [value for _, values in self.batches() for value in values]


def dumped(client: Any, keys: Iterable[str | bytes]) -> list[bytes | None]:
    """Return keys byte for byte, in one round trip: to show that nothing was written, or to restore them."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.dump(key)
        found: list[bytes | None] = pipeline.execute()
    return found


@contextmanager
def unchanged(client: Any) -> Iterator[None]:
    """Expect that nothing is written: every key stays byte for byte."""
    keys = sorted(client.keys())
    before = dumped(client, keys)
    yield
    assert sorted(client.keys()) == keys
    assert dumped(client, keys) == before


@contextmanager
def refused(client: Any, error: str) -> Iterator[None]:
    """Expect that a script answers with an error that matches, and writes nothing."""
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        yield


@contextmanager
def memory_left(client: Any, left_bytes: int) -> Iterator[None]:
    """Give the server that much more memory than it has in use; less than that, and then far less, if negative."""
    far = 100_000 if left_bytes < 0 else 0  # what it has in use changes a little by itself
    client.config_set("maxmemory", client.info("memory")["used_memory"] + left_bytes - far)
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
        keys = client.keys()
        self._content = dict(zip(keys, dumped(client, keys), strict=True))

    def restore(self) -> None:
        """Restore it, and delete all else."""
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.flushdb()
            for key, content in self._content.items():
                pipeline.restore(key, 0, content)
            pipeline.execute()
