"""What clients do moves each number of /metrics by exactly that. Real brokers, real requests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.protocol.messages.fetch import FetchResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.leave_group import LeaveGroupRequest
from korvet.protocol.messages.produce import ProduceResponse
from tests.support import processes
from tests.support.batches import batch
from tests.support.broker import Broker, korvet_broker
from tests.support.ops import page, samples
from tests.support.processes import wait_until
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.wire_client import clients_of_two_workers, request_frame

pytestmark = pytest.mark.slow

TOPIC_METRICS = [
    f"korvet_topic_{name}_total"
    for name in ("received_records", "received_bytes", "sent_records", "sent_bytes")
]


@pytest.fixture(scope="module", params=["record", "batch"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    with korvet_broker(directory, "--set", f"storage.format={request.param}") as running:
        yield running


def traffic(broker: Broker, topic: str) -> list[float]:
    """Return records and bytes in, records and bytes out; nothing if the topic is absent."""
    result = [samples(broker, name).get((topic,)) for name in TOPIC_METRICS]
    return [value for value in result if value is not None]


def shown(broker: Broker, topic: str, expected: list[float]) -> None:
    """Wait until the traffic of a topic is as expected."""
    wait_until(lambda: traffic(broker, topic) == expected, f"{topic}: {traffic(broker, topic)} is {expected}")


def test_the_traffic_of_a_topic_is_summed_over_all_workers(broker: Broker) -> None:
    sent = batch(b"a" * 100, b"b", None)
    with clients_of_two_workers(broker.address, broker.worker_pids(), Client) as clients:
        clients[0].create("both", 2)
        for client in clients:
            for partition in (0, 1, 1):
                assert client.produce("both", sent, partition).error_code == 0
        answer = clients[1].fetch("both")
        received = len(answer.records)
        shown(broker, "both", [18, 6 * len(sent), 6, received])
        assert not clients[0].fetch("both", answer.high_watermark, max_wait_ms=0).records
        clients[0].fetch("both")
        shown(broker, "both", [18, 6 * len(sent), 12, 2 * received])


def test_duplicates_and_rejected_batches_do_not_count(broker: Broker) -> None:
    with Client(broker.address) as client:
        client.create("once", max_message_bytes="200")
        first = batch(b"a", b"b", producer_id=7, epoch=0, sequence=0)
        offsets = {client.produce("once", first).base_offset for _ in range(3)}
        assert len(offsets) == 1
        assert client.produce("once", batch(b"x" * 1000)).error_code == 10
        client.append("once", b"c")
        shown(broker, "once", [3, len(first) + len(batch(b"c")), 0, 0])


def stages(broker: Broker, api: str) -> dict[str, float]:
    """Return how many requests had which stage."""
    counts = samples(broker, "korvet_request_stage_duration_seconds_count")
    return {stage: count for (of_api, stage), count in counts.items() if of_api == api}


def test_each_produce_and_fetch_is_counted_in_its_stages(broker: Broker) -> None:
    def moved(api: str, before: dict[str, float]) -> dict[str, float]:
        return {stage: count - before.get(stage, 0) for stage, count in stages(broker, api).items()}

    produced, fetched = stages(broker, "Produce"), stages(broker, "Fetch")
    with Client(broker.address) as client:
        client.create("staged")
        # Several at once: those after the first wait for their turn, and each has its own stages all the same.
        client.send_bytes(request_frame(produce_request("staged"), 8) * 5)
        for _ in range(5):
            client.receive(ProduceResponse, 8)
        every = {"queue": 5, "decode": 5, "redis": 5, "encode": 5}
        wait_until(
            lambda: moved("Produce", produced) == every, f"stages of Produce: {moved('Produce', produced)}"
        )
        end = client.fetch("staged").high_watermark
        client.fetch("staged", end, max_wait_ms=500)
        every = {"queue": 2, "decode": 2, "redis": 2, "wait": 1, "encode": 2}
        wait_until(
            lambda: {"wait": 0, **moved("Fetch", fetched)} == every,
            f"stages of Fetch: {moved('Fetch', fetched)}",
        )
        sums = samples(broker, "korvet_request_stage_duration_seconds_sum")
        whole = samples(broker, "korvet_request_duration_seconds_sum")
        for api in ("Produce", "Fetch"):
            of_stages = sum(value for (of_api, _), value in sums.items() if of_api == api)
            assert of_stages == pytest.approx(whole[api,], rel=0.2)


def test_a_fetch_is_parked_until_records_arrive(broker: Broker) -> None:
    def parked() -> float:
        return samples(broker, "korvet_requests_parked").get(("Fetch",), 0)

    with Client(broker.address) as waiting, Client(broker.address) as client:
        client.create("parked")
        end = client.fetch("parked").high_watermark
        waiting.send(fetch_request("parked", end, max_wait_ms=600_000, min_bytes=1), 11)
        wait_until(lambda: parked() == 1, "one is parked")
        client.append("parked", b"a")
        waiting.receive(FetchResponse, 11)
        wait_until(lambda: parked() == 0, "none is parked")


def test_a_join_is_parked_until_its_group_is_complete(broker: Broker) -> None:
    def parked() -> float:
        return samples(broker, "korvet_requests_parked").get(("JoinGroup",), 0)

    join = JoinGroupRequest(
        group_id="parked",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=600_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with Client(broker.address) as first, Client(broker.address) as second:
        known = first.call(join, 3)
        second.send(join, 3)
        wait_until(lambda: parked() == 1, "the second waits for the first")
        first.call(LeaveGroupRequest(group_id="parked", member_id=known.member_id), 1)
        second.receive(JoinGroupResponse, 3)
        wait_until(lambda: parked() == 0, "nobody waits")


def test_counts_survive_replaced_and_killed_workers(tmp_path: Path) -> None:
    one = len(batch(b"a"))
    with korvet_broker(tmp_path) as broker:
        with Client(broker.address) as client:
            client.create("orders")
            client.append("orders", b"a")
            shown(broker, "orders", [1, one, 0, 0])
        before = broker.worker_pids()
        broker.signal(signal.SIGHUP)
        wait_until(lambda: not set(before) & set(broker.worker_pids()), "the workers are replaced")
        with Client(broker.address) as client:
            client.append("orders", b"a")
        shown(broker, "orders", [2, 2 * one, 0, 0])
        killed = broker.worker_pids()
        for pid in killed:
            processes.kill(pid)
        accepting = 'korvet_workers{state="accepting"} 2.0'
        wait_until(lambda: len(set(broker.worker_pids()) - set(killed)) == 2, "others are started")
        wait_until(lambda: accepting in page(broker, "/metrics"), "others take their places")
        with Client(broker.address) as client:
            client.append("orders", b"a")
            shown(broker, "orders", [3, 3 * one, 0, 0])
            client.create("others")
            client.delete("orders")
            client.append("others", b"a")
        shown(broker, "others", [1, one, 0, 0])
        # It is gone from the counts of ended workers too.
        shown(broker, "orders", [])
