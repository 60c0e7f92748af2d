"""A process with members of consumer groups, real clients: a test kills it to kill them, as no client's close can.

Run as `python -m tests.support.members`. A line on stdin is a command in JSON: `{"start": <plan>}` or
`{"end": <name>}`; the end of stdin ends the process at once. A line on stdout is what a member reports: its `member`,
the `event`, the time `at` (s, of the machine's monotonic clock) and the event's fields. A report is in the pipe when it
returns.

A member reports each record before it commits the offset after it, so a killed member loses nothing that it
has not reported. It reports by `report(event, **fields)`: `open`, `assigned` and `revoked` or `lost` with `partitions`,
`values` with numbers, `view` with what the client says of its generation, `refused` (a commit) and `failed` with
`error`, `leaving` when it takes no more, and `gone`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

TURN_SECONDS = 0.1
_LONG_POLL_MS = 60_000
_AT_ONCE = 500
_FETCH_BYTES_MIN = 2000

Record = tuple[int, int, bytes]
"""Partition, offset and value."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a member; `name` is its client id, `instance` is empty where it is not static."""

    kind: str
    bootstrap: str
    group: str
    topic: str
    name: str
    assignor: str
    instance: str
    session_ms: int
    heartbeat_ms: int = 300


class Member(ABC):
    """One member, from `start` to `end`."""

    refusals: tuple[type[Exception], ...] = ()
    commit_seconds = 0.2

    def __init__(self, plan: Plan, report: Callable[..., None]) -> None:
        self.plan = plan
        self.report = report
        self.owned: set[int] = set()
        self.unsaved: dict[int, int] = {}
        self._view: object = None
        self._saved_at = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=plan.name, daemon=True)

    def start(self) -> None:
        """Join."""
        self._thread.start()

    def end(self) -> None:
        """Begin to leave, as a client does that is closed."""
        self._ending.set()

    def assigned(self, partitions: Sequence[int]) -> None:
        """Take partitions over."""
        self.owned |= set(partitions)
        self.report("assigned", partitions=sorted(partitions))

    def given_up(self, event: str, partitions: Sequence[int]) -> None:
        """Have partitions no more."""
        for partition in partitions:
            self.unsaved.pop(partition, None)
        self.owned -= set(partitions)
        self.report(event, partitions=sorted(partitions))

    def save(self) -> None:
        """Commit the offsets after the reported records; kept for the next time if that is refused."""
        self._saved_at = time.monotonic()
        offsets = dict(self.unsaved)
        if not offsets:
            return
        try:
            self.commit(offsets)
        except self.refusals as error:
            self.report("refused", error=repr(error))
        else:
            self.saved(offsets)

    def saved(self, offsets: dict[int, int]) -> None:
        """Keep what came meanwhile."""
        for partition, offset in offsets.items():
            if self.unsaved.get(partition) == offset:
                del self.unsaved[partition]

    def _run(self) -> None:
        try:
            self.open()
            self.report("open")
            while not self._ending.is_set():
                self._take(self.poll())
                self._look()
                if time.monotonic() - self._saved_at >= self.commit_seconds:
                    self.save()
            self.save()
            self.report("leaving")
            self.close()
            self.report("gone")
        except Exception as error:  # noqa: BLE001 - any error fails the test
            self.report("failed", error=repr(error))

    def _take(self, records: list[Record]) -> None:
        if not records:
            return
        self.report("values", values=[int(value) for _, _, value in records])
        for partition, offset, _ in records:
            self.unsaved[partition] = offset + 1

    def _look(self) -> None:
        view = self.view()
        if view != self._view:
            self._view = view
            self.report("view", view=view)

    @abstractmethod
    def open(self) -> None:
        """Make the client and subscribe."""

    @abstractmethod
    def poll(self) -> list[Record]:
        """Wait a moment for records."""

    @abstractmethod
    def commit(self, offsets: dict[int, int]) -> None:
        """Commit and wait for the answer; raises one of `refusals`."""

    @abstractmethod
    def view(self) -> object:
        """Return the generation, or what else the client reports of its membership; reported before a commit."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, unless the member is static, and end the client."""


class ConfluentMember(Member):
    """confluent-kafka. It does not tell its generation, only its member id."""

    def open(self) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self.refusals = (confluent_kafka.KafkaException,)
        plan = self.plan
        config: dict[str, Any] = {
            "bootstrap.servers": plan.bootstrap,
            "client.id": plan.name,
            "group.id": plan.group,
            "partition.assignment.strategy": plan.assignor,
            "session.timeout.ms": plan.session_ms,
            "heartbeat.interval.ms": plan.heartbeat_ms,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.min.bytes": _FETCH_BYTES_MIN,
            "fetch.wait.max.ms": int(TURN_SECONDS * 1000),
            "topic.metadata.refresh.interval.ms": 500,
        }
        if plan.instance:
            config["group.instance.id"] = plan.instance
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe(
            [plan.topic],
            on_assign=lambda _, parts: self.assigned([part.partition for part in parts]),
            on_revoke=lambda _, parts: self._revoked([part.partition for part in parts]),
            on_lost=lambda _, parts: self.given_up("lost", [part.partition for part in parts]),
        )

    def poll(self) -> list[Record]:
        result: list[Record] = []
        for message in self._consumer.consume(_AT_ONCE, TURN_SECONDS):
            error = message.error()
            if error is None:
                result.append((message.partition() or 0, message.offset() or 0, message.value() or b""))
            elif not error.retriable():
                self.report("trouble", error=str(error))
        return result

    def commit(self, offsets: dict[int, int]) -> None:
        places = [
            self._kafka.TopicPartition(self.plan.topic, partition, offset)
            for partition, offset in offsets.items()
        ]
        for place in self._consumer.commit(offsets=places, asynchronous=False) or []:
            if place.error is not None:
                raise self._kafka.KafkaException(place.error)

    def view(self) -> object:
        return self._consumer.memberid()

    def close(self) -> None:
        self._consumer.close()

    def _revoked(self, partitions: list[int]) -> None:
        self.save()
        self.given_up("revoked", partitions)


class KafkaPythonMember(Member):
    """kafka-python. Its polls are long: 3.0 forgets a join whose answer comes when the poll that began it is over.

    So it commits after each, and is closed only while records come.
    """

    commit_seconds = 0.0

    def open(self) -> None:
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # has no types
            def on_partitions_revoked(self, revoked: Any) -> None:
                # It runs where the client's requests are sent, and cannot wait: this one is sent before the join.
                if member.unsaved:
                    member._consumer.commit_async(member._places(member.unsaved))
                member.given_up("revoked", [partition.partition for partition in revoked])

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.assigned([partition.partition for partition in assigned])

            def on_partitions_lost(self, lost: Any) -> None:
                member.given_up("lost", [partition.partition for partition in lost])

        assignors = {item.name: item for item in (RangePartitionAssignor, CooperativeStickyAssignor)}
        self._kafka = kafka
        self.refusals = (kafka.errors.KafkaError,)
        self._consumer = kafka.KafkaConsumer(**_options(self.plan, assignors))
        self._consumer.subscribe([self.plan.topic], listener=Listener())

    def poll(self) -> list[Record]:
        result = self._consumer.poll(timeout_ms=_LONG_POLL_MS, max_records=_AT_ONCE)
        return [(item.partition, item.offset, item.value) for some in result.values() for item in some]

    def commit(self, offsets: dict[int, int]) -> None:
        self._consumer.commit(self._places(offsets))

    def _places(self, offsets: dict[int, int]) -> dict[Any, Any]:
        place, note = self._kafka.TopicPartition, self._kafka.OffsetAndMetadata
        return {place(self.plan.topic, item): note(offset, "", -1) for item, offset in offsets.items()}

    def view(self) -> object:
        return self._consumer.group_metadata().generation_id

    def close(self) -> None:
        self._consumer.close()


class AiokafkaMember(Member):
    """aiokafka, with an event loop in the member's thread."""

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # has no types
            async def on_partitions_revoked(self, revoked: Any) -> None:
                # As `save` does, but here the loop runs already.
                offsets = dict(member.unsaved)
                try:
                    if offsets:
                        await member._commit(offsets)
                except member.refusals as error:
                    member.report("refused", error=repr(error))
                member.given_up("revoked", [partition.partition for partition in revoked])

            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.assigned([partition.partition for partition in assigned])

        assignors = {item.name: item for item in (RangePartitionAssignor, StickyPartitionAssignor)}
        self._kafka = aiokafka
        self.refusals = (aiokafka.errors.KafkaError,)
        options = _options(self.plan, assignors)
        self._consumer = aiokafka.AIOKafkaConsumer(rebalance_timeout_ms=60_000, **options)
        self._consumer.subscribe([self.plan.topic], listener=Listener())
        await self._consumer.start()

    def poll(self) -> list[Record]:
        reading = self._consumer.getmany(timeout_ms=int(TURN_SECONDS * 1000), max_records=_AT_ONCE)
        result = self._loop.run_until_complete(reading)
        return [(item.partition, item.offset, item.value) for some in result.values() for item in some]

    def commit(self, offsets: dict[int, int]) -> None:
        self._loop.run_until_complete(self._commit(offsets))

    async def _commit(self, offsets: dict[int, int]) -> None:
        topic = self.plan.topic
        await self._consumer.commit(
            {self._kafka.TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        )

    def view(self) -> object:
        return self._consumer._coordinator.generation

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


def _options(plan: Plan, assignors: dict[str, Any]) -> dict[str, Any]:
    """Return what kafka-python and aiokafka are given by the same names."""
    return {
        "bootstrap_servers": plan.bootstrap,
        "client_id": plan.name,
        "group_id": plan.group,
        "group_instance_id": plan.instance or None,
        "partition_assignment_strategy": [assignors[plan.assignor]],
        "session_timeout_ms": plan.session_ms,
        "heartbeat_interval_ms": plan.heartbeat_ms,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_min_bytes": _FETCH_BYTES_MIN,
        "fetch_max_wait_ms": int(TURN_SECONDS * 1000),
        "metadata_max_age_ms": 500,
    }


KINDS: dict[str, type[Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}

_writing = threading.Lock()


class Command(msgspec.Struct):
    """The command, one of the two."""

    start: Plan | None = None
    end: str = ""


def report(member: str, event: str, **fields: Any) -> None:
    line = {"member": member, "event": event, "at": time.monotonic(), **fields}
    data = memoryview(msgspec.json.encode(line) + b"\n")
    with _writing:
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> None:
    logging.disable()  # the clients log every connection that they lose
    members: dict[str, Member] = {}
    for line in sys.stdin:
        command = msgspec.json.decode(line, type=Command)
        if plan := command.start:
            members[plan.name] = KINDS[plan.kind](plan, partial(report, plan.name))
            members[plan.name].start()
        else:
            members[command.end].end()
    os._exit(0)


if __name__ == "__main__":
    main()
