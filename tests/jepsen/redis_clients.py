"""Redis clients of a topic's streams that know nothing of Kafka: writers by XADD, and a consumer group.

A writer waits for replicas after XADD as a broker does. An XADD whose answer is lost may be done later than the next
one on another connection, so each connection is a writer of its own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import redis
from confluent_kafka import Consumer, TopicPartition
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.jepsen.checker import Violation
from tests.jepsen.clients import PARTITIONS, TOPIC, Client
from tests.jepsen.history import Acknowledged, Delivered, History, Sent, now, value_of
from tests.jepsen.system import BITS, Layout, System
from tests.support.entry_ids import end_of_id
from tests.support.processes import wait_until

WRITERS, WRITTEN_PARTITION = 20, 0
READERS = "redis-readers"
_PAUSE_SECONDS_MAX = 0.2
_AGAIN_SECONDS = 0.5
# More than an append takes in itself: log/renumber then does it in steps, and other clients write between two of them.
_BURST, _BURSTS = 3000, 0.0005
_WAIT_MS = 3000
_READ_MAX = 200
_TAKEN_IN_SECONDS_MAX = 60.0


class StreamClient:
    """A connection to the master that has a partition's stream."""

    def __init__(self, system: System, partition: int) -> None:
        self.stream = f"korvet:{TOPIC}:{partition}"
        self._connect(random.choice(system.redis_ports()))

    def _connect(self, port: int) -> None:
        self._redis: Any = redis.Redis(
            port=port, socket_timeout=5.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
        )

    def call(self, *commands: Sequence[str | int]) -> list[Any]:
        """Send commands at once, and return their replies, errors too; raises OSError if some are lost.

        After an error by which Redis asks for it, the next call goes to another master.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        for reply in replies:
            if isinstance(reply, redis.exceptions.MovedError):
                self._connect(reply.port)
            elif isinstance(reply, redis.exceptions.ReadOnlyError):
                self.close()
        return replies

    def close(self) -> None:
        """Disconnect."""
        self._redis.close()


class StreamWriter(Client):
    """Adds entries to one partition, half of them at the id `0-*` if ids are dense; the others at `*`.

    In layout batch entries are no records: they are not noted, so that the checker refuses each that a reader gets.
    """

    def __init__(self, name: str, system: System, layout: Layout, history: History, seed: int) -> None:
        self._system, self._layout = system, layout
        self._random = random.Random(seed)
        super().__init__(name, system.bootstrap, history)

    def live(self, instance: str) -> None:
        """Write until the end, or until an answer is lost."""
        client = StreamClient(self._system, WRITTEN_PARTITION)
        number = 0
        try:
            while self.goes_on:
                count = _BURST if self._random.random() < _BURSTS else 1
                self._write(client, instance, range(number, number + count))
                number += count
                self._ending.wait(self._random.uniform(0, _PAUSE_SECONDS_MAX))
        except OSError:
            self._ending.wait(_AGAIN_SECONDS)
        finally:
            client.close()

    def _write(self, client: StreamClient, instance: str, numbers: range) -> None:
        """Add values; those that Redis refuses are not written."""
        if self._layout != "batch":
            self.history.add(*(Sent(instance, WRITTEN_PARTITION, number, now()) for number in numbers))
        is_next = self._layout != "time" and len(numbers) == 1 and self._random.random() < 0.5
        # Redis refuses `0-*` while an entry at `*` has not been taken into the log.
        written, is_confirmed = self._add(client, instance, numbers, "0-*") if is_next else ([], False)
        if not written:
            written, is_confirmed = self._add(client, instance, numbers, "*")
        if self._layout != "batch" and is_confirmed:
            place = (instance, WRITTEN_PARTITION)
            self.history.add(
                *(Acknowledged(*place, number, -1, ordered=True, at=now()) for number in written)
            )

    def _add(
        self, client: StreamClient, instance: str, numbers: range, entry_id: str
    ) -> tuple[list[int], bool]:
        """Return the values that Redis has written, and whether replicas have them."""
        timestamp = ("timestamp", "1700000000000") if self._random.random() < 0.5 else ()
        *added, replicas = client.call(
            *(
                ("XADD", client.stream, entry_id, "value", value_of(instance, number), *timestamp)
                for number in numbers
            ),
            ("WAIT", self._system.replicas, _WAIT_MS),
        )
        written = [number for number, reply in zip(numbers, added, strict=True) if isinstance(reply, bytes)]
        return written, isinstance(replicas, int) and replicas >= self._system.replicas


class StreamGroup(Client):
    """A consumer of a Redis group that reads and acknowledges all dense streams of the topic."""

    def __init__(self, system: System, history: History) -> None:
        self._system = system
        super().__init__(READERS, system.bootstrap, history)

    def live(self, _instance: str) -> None:
        """Read what is pending, and then go on, until the end or until an answer is lost."""
        clients = [StreamClient(self._system, partition) for partition in range(PARTITIONS)]
        positions = ["0"] * PARTITIONS
        try:
            for partition in itertools.cycle(range(PARTITIONS)):
                if not self.goes_on:
                    return
                positions[partition] = self._read(clients[partition], partition, positions[partition])
                self._ending.wait(0.02)
        except OSError:
            self._ending.wait(_AGAIN_SECONDS)
        finally:
            for client in clients:
                client.close()

    def _read(self, client: StreamClient, partition: int, position: str) -> str:
        """Read once from a position, `>` after all that is pending; return the next one."""
        group = ("GROUP", READERS, READERS, "COUNT", _READ_MAX)
        [reply] = client.call(("XREADGROUP", *group, "STREAMS", client.stream, position))
        if isinstance(reply, Exception):
            if "NOGROUP" in str(reply):
                client.call(("XGROUP", "CREATE", client.stream, READERS, "0", "MKSTREAM"))
            return "0"
        entries = [entry for _, entries in reply or [] for entry in entries]
        if not entries:
            return ">"
        for entry_id, fields in entries:
            end = end_of_id(entry_id, BITS["dense"])
            if fields and end is not None:
                value = fields[b"value"].decode().rstrip()
                self.history.add(Delivered(READERS, partition, end - 1, now(), value))
        client.call(("XACK", client.stream, READERS, *(entry_id.decode() for entry_id, _ in entries)))
        return position


def wait_until_taken_in(system: System, layout: Layout) -> list[Violation]:
    """Wait until the log ends where its stream does; returns that it does not."""
    client = StreamClient(system, WRITTEN_PARTITION)
    consumer = Consumer({"bootstrap.servers": system.bootstrap, "group.id": "none"})

    def is_taken_in() -> bool:
        moving = f"{{{client.stream}}}:moving"
        last, moves = client.call(("XREVRANGE", client.stream, "+", "-", "COUNT", 1), ("EXISTS", moving))
        if moves or not last or isinstance(last, Exception):
            return False
        place = TopicPartition(TOPIC, WRITTEN_PARTITION)
        end = consumer.get_watermark_offsets(place, timeout=10.0)[1]
        return end == end_of_id(last[0][0], BITS[layout])

    try:
        wait_until(is_taken_in, "the log ends where its stream does", _TAKEN_IN_SECONDS_MAX)
    except AssertionError as error:
        return [Violation("stuck", str(error))]
    else:
        return []
    finally:
        consumer.close()
        client.close()
