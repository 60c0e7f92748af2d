"""CPU per produce request of a whole broker: its worker and its Redis, with many or few requests in flight.

Run as `python loadtest/micro/requests.py [CHECKOUT ...]` from the repository. Starts a broker of one worker from each
checkout (this one where none is named), sends the same prepared requests to each in turn, round after round, and takes
CPU times from /proc, so that a busy machine disturbs little. Several checkouts are a comparison of their code.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support import batches
from tests.support.batches import Record
from tests.support.wire_client import WireClient, request_frame

ROOT = Path(__file__).parents[2]
ROUNDS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


class Case(NamedTuple):
    """A load: records of a request, bytes of a record, connections, and requests in flight on each."""

    name: str
    storage_format: str
    records: int
    size: int
    connections: int
    in_flight: int
    requests: int


CASES = (
    Case("16 KiB of 100 B, 1 x 5", "batch", 150, 100, 1, 5, 8000),
    Case("16 KiB of 1 KiB, 1 x 5", "batch", 15, 1024, 1, 5, 8000),
    Case("16 KiB of 100 B, 8 x 5", "batch", 150, 100, 8, 5, 8000),
    Case("one record, 64 x 1", "batch", 1, 100, 64, 1, 8000),
    Case("one record, 64 x 1", "record", 1, 100, 64, 1, 8000),
)


class Broker(NamedTuple):
    """A broker under measurement: its address, and the processes whose CPU is counted."""

    address: tuple[str, int]
    workers: list[int]
    redis: list[int]


def main() -> None:
    """Measure every case on every checkout, alternating, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT]
    print(
        f"{'case':26} {'format':7} {'checkout':24} {'worker us':>10} {'user':>6} {'system':>7} {'Redis us':>9}"
    )
    for case in CASES:
        figures: dict[Path, list[tuple[float, float, float]]] = {each: [] for each in checkouts}
        for _ in range(ROUNDS):
            for checkout in checkouts:
                with broker(checkout, f"storage.format={case.storage_format}") as started:
                    figures[checkout].append(measured(started, case))
        for checkout, rounds in figures.items():
            user, system, redis = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(
                f"{case.name:26} {case.storage_format:7} {checkout.name:24} {user + system:10.1f} {user:6.1f}"
                f" {system:7.1f} {redis:9.1f}",
                flush=True,
            )


@contextmanager
def broker(checkout: Path, *settings: str) -> Iterator[Broker]:
    """Run a broker of one worker on an embedded server, from the code in `checkout`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        flags = [
            "--listen",
            f"127.0.0.1:{port}",
            "--ops-listen",
            "",
            "--workers",
            "1",
            "--data-dir",
            f"{directory}/d",
        ]
        command = [
            sys.executable,
            "-m",
            "korvet",
            "serve",
            *flags,
            *(f"--set={each}" for each in settings),
        ]
        process = subprocess.Popen(
            command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
        )
        try:
            address = ("127.0.0.1", port)
            _wait_for(address)
            children = _children(process.pid)
            redis = [pid for pid in children if "valkey" in _name(pid) or "redis" in _name(pid)]
            yield Broker(address, _workers(children, redis), redis)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def measured(started: Broker, case: Case) -> tuple[float, float, float]:
    """Return the microseconds of CPU per request: the worker's in user and system mode, and Redis'."""
    frame = _produce_frame(case)
    with WireClient(started.address) as client:
        client.call(metadata_of("bench"), 9)
    return driven(started, [frame] * case.connections, case.in_flight, case.requests)


def metadata_of(topic: str) -> MetadataRequest:
    """Return a request that creates a topic of one partition."""
    return MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)


def driven(
    started: Broker, frames: list[bytes], in_flight: int, requests: int, rest_s: float = 0.0
) -> tuple[float, float, float]:
    """Send each of the requests over a connection of its own, again and again; returns what one costs, as `measured`.

    After the last one the broker has `rest_s` seconds for what it does in the background.
    """
    _drive(started.address, frames, in_flight, requests // 8)
    before, redis_before = cpu(started.workers), cpu(started.redis)
    _drive(started.address, frames, in_flight, requests)
    time.sleep(rest_s)
    after, redis_after = cpu(started.workers), cpu(started.redis)
    scale = 1e6 / requests
    return (
        (after[0] - before[0]) * scale,
        (after[1] - before[1]) * scale,
        (sum(redis_after) - sum(redis_before)) * scale,
    )


def _produce_frame(case: Case) -> bytes:
    now = int(time.time() * 1000)
    # As different as those of real load: what repeats itself would be compressed to nothing on its way to Redis.
    data = batches.batch(*[Record(os.urandom(case.size), None, now) for _ in range(case.records)])
    partition = PartitionProduceData(index=0, records=data)
    topic = TopicProduceData(name="bench", partition_data=[partition])
    return request_frame(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic]), 9)


def _drive(address: tuple[str, int], frames: list[bytes], in_flight: int, requests: int) -> None:
    """Send `requests` in all, each of the frames over a connection of its own, with several in flight."""
    connections = [socket.create_connection(address) for _ in frames]
    poller = select.poll()
    left = requests
    received = {each.fileno(): bytearray() for each in connections}
    by_number = {each.fileno(): (each, frame) for each, frame in zip(connections, frames, strict=True)}
    for each, frame in by_number.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poller.register(each, select.POLLIN)
        each.sendall(frame * in_flight)
        left -= in_flight
    under_way = len(frames) * in_flight
    while under_way:
        for number, _ in poller.poll(10_000):
            data, (connection, frame) = received[number], by_number[number]
            data += connection.recv(65536)
            answered = 0
            while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                del data[: 4 + struct.unpack_from(">i", data)[0]]
                answered += 1
            under_way -= answered
            more = min(answered, max(left, 0))
            if more:
                connection.sendall(frame * more)
                left -= more
                under_way += more
    for each in connections:
        each.close()


def _wait_for(address: tuple[str, int]) -> None:
    for _ in range(300):
        try:
            socket.create_connection(address).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    message = f"no broker at {address}"
    raise RuntimeError(message)


def _children(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_children(int(child))]
    return found


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _workers(children: list[int], redis: list[int]) -> list[int]:
    """Return all processes but Redis: those that are not workers have nothing to do meanwhile."""
    return [pid for pid in children if pid not in redis]


def cpu(pids: list[int]) -> tuple[float, float]:
    user = system = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11]) / _TICKS
        system += int(fields[12]) / _TICKS
    return user, system


if __name__ == "__main__":
    main()
