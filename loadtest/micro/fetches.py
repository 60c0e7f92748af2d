"""CPU of a whole broker, its worker and its Redis, for what a consumer reads from the start of a log.

Run as `python loadtest/micro/fetches.py [CHECKOUT ...]` from the repository. Starts a broker of one worker from each
checkout (this one where none is named), fills a log in each, and fetches 1 MiB or a batch of 16 KiB at a time from each
in turn, a few MiB a turn. Other work on the machine makes single turns dearer: printed are the 20th percentile of all
turns, and the median of the ratios to the first checkout in the same turn. Several checkouts are a comparison of their
code.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.micro import requests
from tests.support import batches
from tests.support.batches import Record
from tests.support.wire_client import WireClient

TURNS, TURN_BYTES = 60, 4 << 20
FETCH_BYTES = 1 << 20
BATCH_BYTES = 16 * 1024  # the Java client's default
LOG_BYTES = 80 << 20
"""More than a worker holds of what it has read ahead."""

_FETCH, _PRODUCE, _METADATA = 11, 8, 9


class Case(NamedTuple):
    """A log: its format, the bytes of a record, and those that are fetched at a time."""

    storage_format: str
    size: int
    fetch_bytes: int = FETCH_BYTES


FORMATS = ("batch", "record")
CASES = [Case(storage_format, size) for storage_format in FORMATS for size in (100, 1024)]
CASES += [Case(storage_format, 100, BATCH_BYTES) for storage_format in FORMATS]


class Turn(NamedTuple):
    """CPU of the worker and of Redis, and time, all in us a record."""

    worker: float
    redis: float
    elapsed: float


class Consumer:
    """Reads the log of one broker again and again."""

    def __init__(self, broker: requests.Broker, case: Case) -> None:
        self._broker = broker
        self._client = WireClient(broker.address)
        self._topic = f"{case.storage_format}-{case.size}"
        self._fetch_bytes = case.fetch_bytes
        self._offset = 0
        self._fill(case)

    def turn(self) -> Turn:
        """Fetch some times."""
        before = _cpu_us(self._broker.workers), _cpu_us(self._broker.redis), time.perf_counter() * 1e6
        records = sum(self._fetch() for _ in range(TURN_BYTES // self._fetch_bytes))
        after = _cpu_us(self._broker.workers), _cpu_us(self._broker.redis), time.perf_counter() * 1e6
        return Turn(*((now - then) / records for now, then in zip(after, before, strict=True)))

    def _fill(self, case: Case) -> None:
        now, count = int(time.time() * 1000), BATCH_BYTES // (case.size + 8)
        data = batches.batch(*[Record(_event(number, case.size), None, now) for number in range(count)])
        partition = PartitionProduceData(index=0, records=data)
        topic = TopicProduceData(name=self._topic, partition_data=[partition])
        request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
        self._client.call(requests.metadata_of(self._topic), _METADATA)
        for _ in range(LOG_BYTES // BATCH_BYTES):
            self._client.call(request, _PRODUCE)

    def _fetch(self) -> int:
        """Fetch what comes next, from the start again after the end; returns how many records came."""
        asked = FetchPartition(partition=0, fetch_offset=self._offset, partition_max_bytes=self._fetch_bytes)
        topics = [FetchTopic(topic=self._topic, partitions=[asked])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, topics=topics)
        answer: FetchResponse = self._client.call(request, _FETCH)
        records = cast("bytes | None", answer.responses[0].partitions[0].records)
        headers = batches.headers_of(bytes(records or b""))
        if not headers:
            self._offset = 0
            return self._fetch()
        self._offset = headers[-1].base_offset + headers[-1].last_offset_delta + 1
        return sum(header.record_count for header in headers)


def main() -> None:
    """Measure every case on every checkout, alternating."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [requests.ROOT]
    print(
        f"{'us a record, KiB':17} {'checkout':20} {'worker':>8} {'Redis':>8} {'time':>8}   ratios to the first"
    )
    for case in CASES:
        with ExitStack() as stack:
            setting = f"storage.format={case.storage_format}"
            started = [stack.enter_context(requests.broker(each, setting)) for each in checkouts]
            consumers = [Consumer(each, case) for each in started]
            turns = [[each.turn() for each in consumers] for _ in range(TURNS)]
        for place, checkout in enumerate(checkouts):
            worker, redis, elapsed = (
                statistics.quantiles(column, n=5)[0]
                for column in zip(*(turn[place] for turn in turns), strict=True)
            )
            ratios = " ".join(
                f"{statistics.median(turn[place][at] / turn[0][at] for turn in turns):.2f}" for at in range(3)
            )
            name = f"{case.storage_format} {case.size}, {case.fetch_bytes >> 10}"
            print(
                f"{name:17} {checkout.name:20} {worker:8.3f} {redis:8.3f} {elapsed:8.3f}   {ratios}",
                flush=True,
            )


def _event(number: int, size: int) -> bytes:
    """Return an event as services send them, which compresses as such do."""
    text = f'{{"id":"{number * 7919:08x}","user":{number * 104_729 % 99_991},"items":['
    while len(text) < size:
        text += f'{{"sku":"{(number * 31 + len(text)) * 2_654_435_761 % 2**32:08x}"}},'
    return text[:size].encode()


def _cpu_us(pids: list[int]) -> float:
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000


if __name__ == "__main__":
    main()
