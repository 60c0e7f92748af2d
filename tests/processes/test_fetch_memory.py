"""What consumers cost the memory of Redis and of a worker: a bounded part, however many read and however slowly."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support import processes, redis_servers
from tests.support.batches import batch
from tests.support.broker import Broker, steady_broker
from tests.support.topic_client import Client, produce_request
from tests.support.wire_client import WireClient, request_frame

MIB = 1024 * 1024
CONSUMERS = 12
PARTITIONS = 30
RECORD_BYTES = 1000
UNREAD = 40
QUEUED_BYTES_MAX = 128 * MIB
"""Enough for a response of all partitions where it is the only one."""

READS_BYTES_MAX = 64 * MIB
"""What one worker's reads may cost Redis, in its output buffers and for what it does to fill them."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with redis_servers.embedded_server() as url:
        yield url


@pytest.fixture(scope="module")
def broker(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"storage.compression": "none", "queued.max.request.bytes": QUEUED_BYTES_MAX}
    directory = tmp_path_factory.mktemp("broker")
    with steady_broker(directory, "--redis-url", server, settings=settings, workers=1) as running:
        yield running


@pytest.fixture(params=["record", "batch"])
def topic(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """Fill the partitions of a topic, each with as much as a consumer takes of it at once."""
    name = f"filled-{request.param}"
    with Client(broker.address) as client:
        client.create(name, PARTITIONS, **{"storage.format": request.param})
        for partition in range(PARTITIONS):
            for _ in range(11):
                client.append(name, *[b"x" * RECORD_BYTES] * 100, partition=partition)
        yield name
        client.delete(name)


def fetch(topic: str) -> bytes:
    partitions = [
        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=MIB) for n in range(PARTITIONS)
    ]
    topics = [FetchTopic(topic=topic, partitions=partitions)]
    return request_frame(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=55 * MIB, topics=topics), 11)


def consume(broker: Broker, topic: str) -> int:
    with WireClient(broker.address) as consumer:
        consumer.send_bytes(fetch(topic))
        return len(consumer.receive_frame())


@contextlib.contextmanager
def highest(read: Callable[[], int]) -> Iterator[list[int]]:
    """Sample a number as long as the block runs; the list holds the highest."""
    peak, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], read())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def test_consumers_at_full_speed_leave_redis_its_memory(broker: Broker, server: str, topic: str) -> None:
    with redis.Redis.from_url(server) as stored, Client(broker.address) as producer:

        def info(field: str) -> int:
            result: dict[str, Any] = stored.info("memory")
            return int(result[field])

        producer.create(f"beside-{topic}")
        # Producers are refused from 95 % of it on.
        stored.config_set("maxmemory", (info("used_memory") + READS_BYTES_MAX) * 100 // 90)

        codes = []
        with highest(lambda: info("mem_clients_normal")) as peak, ThreadPoolExecutor(CONSUMERS) as pool:
            consumed = [pool.submit(consume, broker, topic) for _ in range(CONSUMERS)]
            while not all(item.done() for item in consumed):
                answer = producer.call(produce_request(f"beside-{topic}", batch(b"a record")), 8)
                codes.append(answer.responses[0].partition_responses[0].error_code)
        stored.config_set("maxmemory", 0)
        assert all(item.result() > 50_000 for item in consumed)
        assert set(codes) == {ErrorCode.NONE}
        assert 0 < peak[0] < READS_BYTES_MAX


def test_responses_that_nobody_reads_take_a_bounded_part_of_a_worker(broker: Broker, topic: str) -> None:
    [worker] = broker.worker_pids()
    whole = consume(broker, topic)
    assert whole > PARTITIONS * 1_000_000

    def memory() -> int:
        return int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * resource.getpagesize()

    before = memory()
    with contextlib.ExitStack() as stack:
        for _ in range(UNREAD):
            peer = stack.enter_context(socket.create_connection(broker.address, 30))
            # Requests after the first wait until its response is read.
            peer.sendall(fetch(topic) * 5)
            assert peer.recv(4, socket.MSG_PEEK)
        assert memory() - before < 2 * QUEUED_BYTES_MAX
        assert 50_000 < consume(broker, topic) < whole
    # As many records; into how many batches they go depends on what the worker knows of their sizes.
    processes.wait_until(
        lambda: whole - consume(broker, topic) < PARTITIONS * RECORD_BYTES, "the others' memory is free"
    )
