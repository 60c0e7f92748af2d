"""Peers that do nothing, hardly anything, or nothing sensible: clients beside them go on.

What workers take of memory meanwhile is bounded, and nothing of the peers is left afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.faults.work import Work
from tests.support import processes, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.ops import total
from tests.support.wire_client import request_frame

MIB = 1 << 20
IDLE = 5000
SLOW_READERS = 100
BYTE_BY_BYTE = 200
GARBAGE_SECONDS = 15.0
GARBAGE_CONNECTIONS = 4
# What a worker may take in addition: queued.max.request.bytes and what it has in hand.
MORE_BYTES_MAX = 400 * MIB


def _resident(broker: Broker) -> int:
    """Return the memory of the largest worker."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in broker.worker_pids()]
    return max(pages) * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def _threads(count: int, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in threads until the block ends; it looks whether its argument is set."""
    ending = threading.Event()
    running = [threading.Thread(target=work, args=(ending,), daemon=True) for _ in range(count)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        ending.set()
        for process in running:
            process.join(processes.WAIT_SECONDS_MAX)


@pytest.mark.timeout(300)
def test_five_thousand_connections_do_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE
    assert hard >= wanted, f"the limit of open files is {hard}, of which this needs {wanted}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        with (
            korvet_broker(tmp_path) as broker,
            Work(broker.bootstrap) as work,
            contextlib.ExitStack() as idle,
        ):
            for _ in range(IDLE):
                idle.enter_context(socket.create_connection(broker.address, processes.WAIT_SECONDS_MAX))
            processes.wait_until(lambda: total(broker, "korvet_connections") >= IDLE, "all are accepted")
            work.goes_on("5,000 connections are idle")
            assert total(broker, "korvet_connections") >= IDLE
        assert broker.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(300)
def test_readers_take_a_byte_now_and_then_of_all_that_they_ask_for(tmp_path: Path) -> None:
    with korvet_broker(tmp_path) as broker:
        reading.create_topic(broker.bootstrap, "large", 1, {"storage.format": "batch"})
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "batch.size": 900_000})
        block = random.Random(0).randbytes(10_000)
        for _ in range(5000):
            producer.produce("large", block)
            producer.poll(0)
        assert producer.flush(processes.WAIT_SECONDS_MAX) == 0
        before = _resident(broker)
        topic = FetchTopic(
            topic="large",
            partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)],
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=[topic])

        def read(ending: threading.Event) -> None:
            with socket.socket() as reader:
                # The kernel is not to take in what the reader does not.
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(broker.address)
                reader.sendall(request_frame(request, 11))
                while not ending.wait(0.2) and reader.recv(1):
                    pass

        with Work(broker.bootstrap) as work, _threads(SLOW_READERS, read):
            for _ in range(5):
                work.goes_on(f"{SLOW_READERS} readers are slow")
            assert _resident(broker) - before < MORE_BYTES_MAX


@pytest.mark.timeout(300)
def test_peers_send_garbage_as_fast_as_they_can(tmp_path: Path) -> None:
    with korvet_broker(tmp_path) as broker:
        before = _resident(broker)
        sent = itertools.count()
        blocks = [_garbage(random.Random(number)) for number in range(16)]
        seconds: list[float] = []

        def send(ending: threading.Event) -> None:
            began = time.monotonic()
            for block in itertools.cycle(blocks):
                if ending.is_set():
                    break
                with contextlib.suppress(OSError), socket.create_connection(broker.address) as peer:
                    peer.sendall(block)
                    next(sent)
            seconds.append(time.monotonic() - began)

        with Work(broker.bootstrap) as work:
            with _threads(GARBAGE_CONNECTIONS, send):
                work.goes_on()
                time.sleep(GARBAGE_SECONDS)
                work.goes_on("garbage was sent")
                assert _resident(broker) - before < MORE_BYTES_MAX
            rate = next(sent) * len(blocks[0]) / max(seconds) / 1e6
            print(f"{rate:.0f} MB/s of garbage")  # noqa: T201 - what this machine could do, for the reader
        assert "Traceback" not in broker.log()


def _garbage(source: random.Random) -> bytes:
    """Return bytes that begin like the largest accepted request: they are not refused at once."""
    size = 16 * MIB
    return struct.pack(">i", size) + struct.pack(">hhi", 0, 9, 1) + source.randbytes(size - 8)


@pytest.mark.timeout(300)
def test_peers_send_a_byte_a_second(tmp_path: Path) -> None:
    limit = ("--set", "connection.receive.timeout.ms=3000")
    with korvet_broker(tmp_path, *limit) as broker, Work(broker.bootstrap) as work:
        ended = threading.Semaphore(0)

        def send(ending: threading.Event) -> None:
            frame = struct.pack(">i", 1000) + bytes(1000)
            with socket.create_connection(broker.address) as peer, contextlib.suppress(OSError):
                peer.settimeout(1.0)
                for byte in frame:
                    if ending.is_set():
                        return
                    peer.sendall(bytes([byte]))
                    with contextlib.suppress(TimeoutError):
                        # The broker says nothing, and in the end closes the connection.
                        if not peer.recv(1):
                            break
            ended.release()

        with _threads(BYTE_BY_BYTE, send):
            work.goes_on(f"{BYTE_BY_BYTE} peers send a byte a second")
            for _ in range(BYTE_BY_BYTE):
                assert ended.acquire(timeout=processes.WAIT_SECONDS_MAX)
        work.goes_on()
