"""CPU per request of a whole broker, its worker and its Redis: produce, fetch, metadata, and requests of groups.

Run as `python -m loadtest.micro.requests [CHECKOUT ...] [--servers "one Redis,3 masters"]` in the repository. Starts a
broker of one worker from each checkout (this one where none is named) on each kind of servers, and sends the same
prepared requests to each in turn, round after round. Ratios are to the first broker, in the same round, so that other
work on the machine disturbs little. Several checkouts are a comparison of their code. "Alone" has one request under way
at a time. loadtest/capacity.py has these costs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from korvet.protocol.schema import Message
from loadtest.harness import ROOT, Broker, Cpu, drive, table
from tests.support import batches
from tests.support.batches import Record
from tests.support.processes import free_port
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_servers import connected, embedded_server
from tests.support.wire_client import WireClient, request_frame

TOPIC = "bench"
PARTITIONS = CONNECTIONS = 12
IN_FLIGHT = 5
MEMBERS = 32
LONG_MS = 600_000
SETTINGS = ("workers=1", "group.initial.rebalance.delay.ms=0", f"num.partitions={PARTITIONS}")
REST_SECONDS = 0.5
MIB = 1 << 20
BATCH_BYTES = 16 * 1024  # the Java client's default
LOG_BYTES = 80 * MIB
"""More than a worker holds of what it has read ahead."""


class Member(NamedTuple):
    """The one member of a group."""

    group: str
    id: str
    generation: int


class Measured(NamedTuple):
    """A broker under measurement, the members of its groups, and the servers of Redis that it did not start."""

    broker: Broker
    members: list[Member]
    servers: list[int]


Frames = Callable[[Measured], list[bytes]]
"""Makes requests, one for each connection."""


class Case(NamedTuple):
    """A kind of request, a format of storage, how many requests a round sends, and how many each connection has.

    With `walk` one connection goes through all of them.
    """

    name: str
    storage_format: str
    frames: Frames
    requests: int
    in_flight: int = IN_FLIGHT
    rest_seconds: float = 0.0
    """What happens in the background so long after the last request counts too."""
    walk: bool = False


def metadata_frame(topic: str) -> bytes:
    """Return a request for a topic, which creates it."""
    return request_frame(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 9)


def produce_frame(data: bytes, partitions: Sequence[int], topic: str = TOPIC) -> bytes:
    """Return a request that appends a batch to each of some partitions."""
    written = [PartitionProduceData(index=index, records=memoryview(data)) for index in partitions]
    topics = [TopicProduceData(name=topic, partition_data=written)]
    return request_frame(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics), 9)


def produce(records: int, size: int, partitions: int = 1, connections: int = CONNECTIONS) -> Frames:
    """Return what makes produce requests that go through the partitions in turn."""

    def frames(_: Measured) -> list[bytes]:
        now = int(time.time() * 1000)
        # As different as those of real load: what repeats itself would be compressed to nothing on its way to Redis.
        data = batches.batch(*[Record(os.urandom(size), None, now) for _ in range(records)])
        return [
            produce_frame(data, [(first + n) % PARTITIONS for n in range(partitions)])
            for first in range(connections)
        ]

    return frames


def fetch(max_bytes: int, offset: int = 0, wait_ms: int = 0) -> Frames:
    """Return what makes fetches of one partition each; an offset past the end waits."""

    def made(partition: int) -> bytes:
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        topics = [FetchTopic(topic=TOPIC, partitions=[asked])]
        return request_frame(FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=topics), 11)

    return lambda _: [made(partition) for partition in range(CONNECTIONS)]


def read(size: int, max_bytes: int) -> Frames:
    """Return what makes fetches that read a log from its start, each where the one before ended."""
    topic = f"log-{size}-{max_bytes}"

    def made(offset: int) -> FetchRequest:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        topics = [FetchTopic(topic=topic, partitions=[asked])]
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, topics=topics)

    def frames(measured: Measured) -> list[bytes]:
        address, offset = measured.broker.address, 0
        requests: list[bytes] = []
        now, count = int(time.time() * 1000), BATCH_BYTES // (size + 8)
        data = batches.batch(*[Record(event(number, size), None, now) for number in range(count)])
        drive(address, [[metadata_frame(topic)]], 1, 1)
        drive(address, [[produce_frame(data, [0], topic)]], IN_FLIGHT, LOG_BYTES // BATCH_BYTES)
        with WireClient(address) as client:
            while True:
                [result] = client.call(made(offset), 11).responses[0].partitions
                if not result.records:
                    return requests
                requests.append(request_frame(made(offset), 11))
                last = batches.headers_of(result.records)[-1]
                offset = last.base_offset + last.last_offset_delta + 1

    return frames


def event(number: int, size: int) -> bytes:
    """Return an event as services send them, which compresses as such do."""
    text = f'{{"id":"{number * 7919:08x}","user":{number * 104_729 % 99_991},"items":['
    while len(text) < size:
        text += f'{{"sku":"{(number * 31 + len(text)) * 2_654_435_761 % 2**32:08x}"}},'
    return text[:size].encode()


def group(request: Callable[[Member], Message], version: int) -> Frames:
    """Return what makes requests of members."""
    return lambda measured: [request_frame(request(member), version) for member in measured.members]


def heartbeat(member: Member) -> Message:
    return HeartbeatRequest(group_id=member.group, generation_id=member.generation, member_id=member.id)


def join(member: Member) -> JoinGroupRequest:
    """Return a join; with version 3 a new member has its id at once."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"m" * 100)
    return JoinGroupRequest(
        group_id=member.group,
        session_timeout_ms=LONG_MS,
        rebalance_timeout_ms=LONG_MS,
        member_id=member.id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def commit(partitions: int) -> Callable[[Member], Message]:
    offsets = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(partitions)
    ]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=offsets)]
    return lambda member: OffsetCommitRequest(
        group_id=member.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.id,
        topics=topics,
    )


def alone(frames: Frames) -> Frames:
    """Return what makes the first of them only."""
    return lambda measured: frames(measured)[:1]


CASES = (
    Case("produce 1 record of 100 B", "batch", produce(1, 100), 3000),
    Case("produce 1 record, 64 x 1", "batch", produce(1, 100, connections=64), 8000, 1),
    Case("produce 1 record, alone", "batch", alone(produce(1, 100)), 2000, 1),
    Case("produce 16 KiB of 1 KiB", "batch", produce(16, 1024), 2000),
    Case("produce 16 KiB of 1 KiB, 1 x 5", "batch", produce(15, 1024, connections=1), 8000),
    Case("produce 16 KiB of 1 KiB, alone", "batch", alone(produce(16, 1024)), 1500, 1),
    Case("produce 16 KiB of 100 B, 1 x 5", "batch", produce(150, 100, connections=1), 8000),
    Case("produce 16 KiB of 100 B, 8 x 5", "batch", produce(150, 100, connections=8), 8000),
    Case("produce 256 KiB", "batch", produce(256, 1024), 300),
    Case("produce 12 x 1 record", "batch", produce(1, 100, PARTITIONS), 600),
    Case("produce 12 x 16 KiB", "batch", produce(16, 1024, PARTITIONS), 300),
    Case("fetch 16 KiB", "batch", fetch(16_384), 3000),
    Case("fetch 16 KiB, alone", "batch", alone(fetch(16_384)), 2000, 1),
    Case("fetch 256 KiB", "batch", fetch(262_144), 600),
    Case("fetch that waits 2 ms", "batch", fetch(16_384, 1 << 40, 2), 1500),
    Case("read 1 MiB of 100 B", "batch", read(100, MIB), 200, 1, walk=True),
    Case("read 1 MiB of 1 KiB", "batch", read(1024, MIB), 200, 1, walk=True),
    Case("read 16 KiB of 100 B", "batch", read(100, BATCH_BYTES), 4000, 1, walk=True),
    Case("metadata of a topic", "batch", lambda _: [metadata_frame(TOPIC)] * CONNECTIONS, 4000),
    Case("heartbeat", "batch", group(heartbeat, 3), 3000, IN_FLIGHT, REST_SECONDS),
    Case("heartbeat, alone", "batch", alone(group(heartbeat, 3)), 2000, 1, REST_SECONDS),
    Case("commit 1 partition", "batch", group(commit(1), 7), 2000, IN_FLIGHT, REST_SECONDS),
    Case("commit 10 partitions", "batch", group(commit(10), 7), 1000, IN_FLIGHT, REST_SECONDS),
    Case("join", "batch", group(join, 3), 1000, IN_FLIGHT, REST_SECONDS),
    Case("produce 1 record of 100 B", "record", produce(1, 100), 3000),
    Case("produce 1 record, 64 x 1", "record", produce(1, 100, connections=64), 8000, 1),
    Case("produce 16 KiB of 1 KiB", "record", produce(16, 1024), 1500),
    Case("produce 16 KiB of 100 B", "record", produce(160, 100), 1000),
    Case("produce 16 KiB of 100 B, 1 x 5", "record", produce(150, 100, connections=1), 3000),
    Case("read 1 MiB of 100 B", "record", read(100, MIB), 200, 1, walk=True),
    Case("read 1 MiB of 1 KiB", "record", read(1024, MIB), 200, 1, walk=True),
    Case("read 16 KiB of 100 B", "record", read(100, BATCH_BYTES), 4000, 1, walk=True),
)


def cost(measured: Measured, case: Case, frames: list[bytes], requests: int, masters: int) -> Cpu:
    """Return the microseconds of CPU of a request; with many masters as many more are under way."""
    broker, in_flight = measured.broker, case.in_flight * masters
    turns = [frames] if case.walk else [[frame] for frame in frames]
    drive(broker.address, turns, in_flight, requests // 8)
    before = broker.used(measured.servers)
    drive(broker.address, turns, in_flight, requests)
    time.sleep(case.rest_seconds)
    return broker.used(measured.servers).since(before).us(requests)


@contextlib.contextmanager
def servers_of(name: str) -> Iterator[tuple[list[str], list[int]]]:
    """Run the servers of that name; yields the settings by which a broker uses them, and their processes."""
    if name == "embedded":
        yield [], []
    elif name == "one Redis":
        port = str(free_port())
        options = ("--port", port, "--bind", "127.0.0.1", "--appendonly", "yes")
        with embedded_server(*options) as url, connected(url) as client:
            yield [f"redis.url=redis://127.0.0.1:{port}"], [client.info("server")["process_id"]]
    else:
        with redis_cluster(
            int(name.removesuffix(" masters").removesuffix(" master")), append_only=True
        ) as cluster:
            yield [f"redis.url={cluster.url}"], [node.pid for node in cluster.nodes]


@contextlib.contextmanager
def running(checkout: Path, name: str, storage_format: str) -> Iterator[Measured]:
    """Run a broker of one worker, with a topic and members of groups to use."""
    with servers_of(name) as (place, pids), tempfile.TemporaryDirectory() as directory:
        settings = [*place, *SETTINGS, f"storage.format={storage_format}"]
        with Broker(Path(directory), settings, checkout) as broker:
            drive(broker.address, [[metadata_frame(TOPIC)]], 1, 1)
            measured = Measured(broker, join_all(broker.address), pids)
            written = [[frame] for frame in produce(16, 1024)(measured)]
            drive(broker.address, written, IN_FLIGHT, 600)  # what fetches read
            yield measured


def join_all(address: tuple[str, int]) -> list[Member]:
    """Make groups of one member each."""
    members = []
    with WireClient(address) as client:
        for number in range(MEMBERS):
            name = f"group-{number}"
            joined = client.call(join(Member(name, "", -1)), 3)
            member = Member(name, joined.member_id, joined.generation_id)
            part = SyncGroupRequestAssignment(member_id=member.id, assignment=b"a" * 100)
            request = SyncGroupRequest(
                group_id=name, generation_id=member.generation, member_id=member.id, assignments=[part]
            )
            client.call(request, 3)
            members.append(member)
    return members


def main() -> None:
    """Measure every case on every broker, alternating, and print medians."""
    given = _flags()
    rows: list[list[str | float]] = []
    for storage_format in given.formats.split(","):
        cases = [
            case
            for case in CASES
            if case.storage_format == storage_format and case.name.startswith(tuple(given.only.split(",")))
        ]
        kinds = itertools.product(given.checkouts or [ROOT], given.servers.split(","))
        with contextlib.ExitStack() as stack:
            brokers = {
                f"{checkout.name}, {name}": stack.enter_context(running(checkout, name, storage_format))
                for checkout, name in kinds
            }
            for case in cases:
                print(f"{case.name}, {case.storage_format}", file=sys.stderr, flush=True)
                rows += _measure(brokers, case, given)
    print(table(("request", "format", "broker", "worker us", "ratio", "Redis us", "ratio"), rows))


def _measure(brokers: dict[str, Measured], case: Case, given: argparse.Namespace) -> list[list[str | float]]:
    """Return the rows of one case."""
    costs: dict[str, list[Cpu]] = {name: [] for name in brokers}
    frames = {name: case.frames(broker) for name, broker in brokers.items()}
    requests = max(int(case.requests * given.share), 100)
    for _ in range(given.rounds):
        for name, broker in brokers.items():
            masters = max(len(broker.servers), 1) if given.per_node and case.in_flight > 1 else 1
            costs[name].append(cost(broker, case, frames[name], requests, masters))
    first = next(iter(costs.values()))
    rows: list[list[str | float]] = []
    for name, rounds in costs.items():
        row: list[str | float] = [case.name, case.storage_format, name]
        for part in range(2):
            row.append(statistics.median(cost[part] for cost in rounds))
            row.append(
                statistics.median(cost[part] / base[part] for cost, base in zip(rounds, first, strict=True))
            )
        rows.append(row)
    return rows


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests that a round has")
    parser.add_argument("--servers", default="embedded", help='some of embedded, one Redis, "N masters"')
    parser.add_argument("--only", default="", help="cases whose names begin like one of these")
    parser.add_argument("--formats", default="batch,record")
    parser.add_argument("--per-node", action="store_true", help="as many requests under way for each master")
    return parser.parse_args()


if __name__ == "__main__":
    main()
