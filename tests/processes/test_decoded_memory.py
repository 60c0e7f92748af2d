"""What decoded records take of a worker's memory: batches of very many small ones, in one request."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.batches import ZSTD, Record, batch
from tests.support.broker import steady_broker
from tests.support.topic_client import Client

BATCHES = 6
MIB = 1 << 20


@pytest.mark.parametrize(
    ("configs", "records", "growth_mib_max"),
    [
        # As many as one script takes; decoded to be written, a few at a time.
        ({"storage_format": "record"}, 30_000, 150),
        # Any number; decoded to be checked, in parts. All of them at once took 250 MiB.
        ({"storage_format": "batch", "cleanup_policy": "compact"}, 1_000_000, 120),
    ],
)
def test_many_small_records_in_one_request_take_bounded_memory(
    tmp_path: Path, configs: dict[str, str], records: int, growth_mib_max: int
) -> None:
    sent = batch(*[Record(b"", b"k")] * records, codec=ZSTD)
    data = [PartitionProduceData(index=index, records=sent) for index in range(BATCHES)]
    request = ProduceRequest(
        acks=-1, timeout_ms=0, topic_data=[TopicProduceData(name="many", partition_data=data)]
    )
    with (
        steady_broker(tmp_path, settings={"redis.timeout.ms": 30_000}, workers=1) as broker,
        Client(broker.address) as client,
    ):
        client.create("many", BATCHES, **configs)
        [pid] = broker.worker_pids()
        before = psutil.Process(pid).memory_info().rss
        client.socket.settimeout(300)  # millions of records are decoded
        [answer] = client.call(request, 8).responses
        assert {partition_response.error_code for partition_response in answer.partition_responses} == {
            ErrorCode.NONE
        }
        # The largest ever, of which the system keeps account.
        [peak] = [
            int(line.split()[1]) * 1024
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        ]
        assert peak - before < growth_mib_max * MIB
