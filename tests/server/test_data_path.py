"""korvet_core.DataPath beside the sockets of clients and the client of Redis: what fails in one, and what is freed."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from korvet_core import DataPath, RedisClient

from korvet.log.appends import APPEND_SCRIPTS
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support import batches
from tests.support.client_sockets import Worker
from tests.support.wire_client import request_frame


def _serving(on_news: Any) -> tuple[DataPath[Any], Worker]:
    """Return what serves Produce and Fetch, over a Redis that is away, and the sockets of its clients."""
    redis = RedisClient(
        "server",
        [("127.0.0.1", 1)],
        "",
        ("", "", 0),
        ("", ""),
        ValueError,
        ValueError,
        object,
        lambda _actions: None,
        timeout_s=5.0,
        connect_timeout_s=5.0,
        seed=1,
    )
    lane = redis.add_lane(commands_max=1000, bytes_max=1 << 20, reply_bytes_max=1 << 20)
    data_path: DataPath[Any] = DataPath(
        redis,
        (lane, lane),
        APPEND_SCRIPTS,
        on_news,
        is_cluster=False,
        plain_bytes_max=1 << 20,
        held_bytes_max=1 << 20,
        timeout_s=5.0,
        replicas=0,
        sessions_max=10,
        seed=1,
        wait_max_s=None,
        now_s=0.0,
    )
    data_path.join()
    worker = Worker()
    data_path.serve_clients(worker.core)
    return data_path, worker


def test_a_fault_of_whom_news_are_for_is_not_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)

    def hear(_news: object) -> None:
        raise LookupError

    data_path, worker = _serving(hear)
    owner, client = worker.connect()
    data_path.put_session(owner.number, True, None)  # noqa: FBT003 - it may write everywhere
    data = PartitionProduceData(index=0, records=batches.batch(batches.Record(b"value", None, 1)))
    topic = TopicProduceData(name="a", partition_data=[data])
    client.sendall(request_frame(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]), 9))
    worker.core.turn()
    assert data_path.count == 1  # it asks for its partition
    assert [type(fault.exc_value) for fault in faults] == [LookupError]
    client.close()


def test_a_cycle_of_producers_sockets_and_redis_is_freed() -> None:
    kept: dict[str, Any] = {}
    data_path, worker = _serving(kept.update)
    owner, client = worker.connect()
    owner.worker = worker
    data_path.put_session(owner.number, True, None)  # noqa: FBT003 - as above
    kept["data path"] = data_path
    freed = weakref.ref(owner)
    del kept, data_path, worker, owner
    gc.collect()
    gc.collect()
    assert freed() is None
    with client:
        assert client.recv(1) == b""  # the socket was closed with its owner
