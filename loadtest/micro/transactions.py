"""What transactions cost: ending one by its number of partitions, and reading with read_committed.

Run as `python loadtest/micro/transactions.py` from the repository. Starts a broker of one worker on an embedded server
for each format. A transaction writes one record to each of its partitions by one request, and EndTxn ends it; the table
has the time until the answer, and the CPU of worker and Redis. Reads are fetches of 1 MiB over a log of committed
transactions of 100 records, with read_committed and read_uncommitted in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.records.batch import TRANSACTIONAL_BIT
from korvet.protocol.types import IsolationLevel
from loadtest.micro.requests import ROOT, Broker, broker
from tests.support.batches import batch, forged, headers_of
from tests.support.topic_client import Client

PARTITIONS = (1, 10, 100)
COMMITS = 300
READ_TRANSACTIONS, READ_RECORDS = 300, 100
ROUNDS = 9
FETCH_BYTES = 1 << 20


class Cost(NamedTuple):
    """Of one request: time until its answer (us, median), and CPU of worker and Redis (us)."""

    wall_us: float
    worker_us: float
    redis_us: float


class Producer:
    """A transactional producer; each transaction has an epoch of its own (KIP-890)."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        made = client.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
        assert made.error_code == 0, made
        self._id, self._epoch = made.producer_id, made.producer_epoch

    def write(self, topic: str, partitions: int, *values: bytes) -> None:
        """Write a batch to each of the first partitions of a topic."""
        plain = batch(*values, producer_id=self._id, epoch=self._epoch, sequence=0)
        data = [
            PartitionProduceData(index=index, records=forged(plain, attributes=TRANSACTIONAL_BIT))
            for index in range(partitions)
        ]
        request = ProduceRequest(
            transactional_id=self._name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        [answer] = self._client.call(request, 12).responses
        assert {each.error_code for each in answer.partition_responses} == {0}

    def commit(self) -> None:
        """Commit."""
        request = EndTxnRequest(
            transactional_id=self._name, producer_id=self._id, producer_epoch=self._epoch, committed=True
        )
        ended: Any = self._client.call(request, 5)
        assert ended.error_code == 0, ended
        self._id, self._epoch = ended.producer_id, ended.producer_epoch


def cpu(pids: list[int]) -> float:
    """Return the CPU that processes have taken, in seconds."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measured(started: Broker, times: int, request: Callable[[], None], before: Callable[[], None]) -> Cost:
    """Return the cost of a request, without that of what comes before each."""
    walls: list[float] = []
    worker = redis = 0.0
    for _ in range(times):
        before()
        at = cpu(started.workers), cpu(started.redis)
        begun = time.perf_counter()
        request()
        walls.append(time.perf_counter() - begun)
        worker += cpu(started.workers) - at[0]
        redis += cpu(started.redis) - at[1]
    return Cost(statistics.median(walls) * 1e6, worker / times * 1e6, redis / times * 1e6)


def read(client: Client, topic: str, isolation: IsolationLevel) -> None:
    """Read a log of one partition from its start to its end."""
    offset = 0
    while True:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=isolation,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
                    ],
                )
            ],
        )
        [found] = client.call(request, 11).responses[0].partitions
        assert found.error_code == 0
        if not found.records:
            return
        last = headers_of(found.records)[-1]
        offset = last.base_offset + last.last_offset_delta + 1


def main() -> None:
    """Print both tables."""
    for storage_format in ("batch", "record"):
        with broker(ROOT, f"storage.format={storage_format}") as started, Client(started.address) as client:
            client.create("bench", partitions=max(PARTITIONS))
            for partitions in PARTITIONS:
                producer = Producer(client, f"of {partitions}")

                def before(producer: Producer = producer, partitions: int = partitions) -> None:
                    producer.write("bench", partitions, b"v" * 100)

                cost = measured(started, COMMITS, producer.commit, before)
                print(
                    f"{storage_format:7} commit of {partitions:3} partitions {cost.wall_us:8.0f} us"
                    f" {cost.worker_us:8.0f} worker {cost.redis_us:8.0f} Redis",
                    flush=True,
                )
            client.create("read")
            producer = Producer(client, "read")
            for _ in range(READ_TRANSACTIONS):
                producer.write("read", 1, *[b"v" * 100] * READ_RECORDS)
                producer.commit()
            costs: dict[IsolationLevel, list[float]] = {each: [] for each in IsolationLevel}
            for _ in range(ROUNDS):
                for isolation in IsolationLevel:
                    at = cpu(started.workers)
                    read(client, "read", isolation)
                    costs[isolation].append(cpu(started.workers) - at)
            plain, committed = (statistics.median(costs[each]) for each in IsolationLevel)
            count = READ_TRANSACTIONS * (READ_RECORDS + 1)
            print(
                f"{storage_format:7} read_uncommitted {plain / count * 1e6:6.2f} us of the worker a record,"
                f" read_committed {committed / count * 1e6:6.2f} ({committed / plain:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
