"""What peers send that is no Kafka: the connection is closed, one line is logged, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode
from korvet.protocol.messages import all_messages
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support import processes
from tests.support.batches import CODECS, ZSTD, batch, compress, raw
from tests.support.broker import Broker, korvet_broker, steady_broker
from tests.support.peers import lines_about
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.wire_client import ClosedByBrokerError, WireClient, frame, header, request_frame

pytestmark = pytest.mark.slow

SETTINGS = {
    "socket.request.max.bytes": 4_000_000,
    "request.control.max.bytes": 1_000_000,
    "connection.receive.timeout.ms": 1_000,
    "connections.max.idle.ms": 3_000,
    "log.level": "debug",
}
MEMORY_BYTES_MAX = 400 * 1024 * 1024
"""What a worker may have held at its worst: the limit on decompressed records, some copies, and itself."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker with small limits; in the end the same workers live and nothing was a fault of theirs."""
    with steady_broker(tmp_path_factory.mktemp("broker"), settings=SETTINGS) as running:
        yield running
        assert max(memory_peak_bytes(pid) for pid in running.worker_pids()) < MEMORY_BYTES_MAX


def memory_peak_bytes(pid: int) -> int:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


def assert_closed(broker: Broker, client: WireClient, reason: str = "") -> None:
    """Check that the broker closes the connection, says so once, and serves others."""
    assert client.is_closed_by_broker()
    assert_logged(broker, client, reason)


def assert_logged(broker: Broker, client: WireClient, reason: str = "") -> None:
    # Those of the audit log are about its requests.
    [line] = [item for item in lines_about(broker, client) if "administrative request" not in item]
    assert reason in line
    with WireClient(broker.address) as other:
        assert other.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def size(number: int) -> bytes:
    return struct.pack(">i", number)


PRODUCE, FETCH, METADATA, CREATE = 0, 1, 3, 19
HOSTILE: dict[str, tuple[bytes, str]] = {
    # Sizes and headers by themselves are in core/proto/tests/frames.rs, bodies in tests/protocol/test_hostile.py.
    "a negative length": (size(-1) + bytes(20), "-1 bytes"),
    "a produce request above its limit": (size(4_000_001) + header(PRODUCE, 8), "limit of 4000000"),
    "another request above its limit": (size(1_000_001) + header(METADATA, 8), "limit of 1000000"),
    "an unknown API": (frame(header(999, 0)), "API key 999"),
    "an unknown version": (frame(header(METADATA, 99) + b"\0"), "version 99 of Metadata"),
    "a version that Kafka has dropped": (frame(header(FETCH, 3) + bytes(50)), "version 3 of Fetch"),
    "a header cut off": (frame(struct.pack(">hhi", METADATA, 1, 1)), "header"),
    "null where none is allowed": (frame(header(CREATE, 2) + size(-1) + bytes(9)), ""),
    "records longer than the frame": (
        frame(
            header(PRODUCE, 8)
            + b"\xff\xff\0\1\0\0\0\0"
            + size(1)
            + b"\0\1t"
            + size(1)
            + size(0)
            + size(2**31 - 1)
        ),
        "",
    ),
    "random bytes": (bytes(range(1, 256)) * 8, ""),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), ""),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: localhost:9092\r\n\r\n", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_peer_that_speaks_no_kafka_is_closed_with_one_line(
    broker: Broker, client: Client, name: str
) -> None:
    data, reason = HOSTILE[name]
    client.send_bytes(data)
    assert_closed(broker, client, reason)


def test_requests_up_to_their_limits_are_served(client: Client) -> None:
    client.create("limits", max_message_bytes="4000000")
    assert client.append("limits", b"x" * 3_900_000) > 0
    padding = bytes(999_000)  # bytes after a request mean nothing
    client.send_bytes(frame(request_frame(MetadataRequest(topics=[]), 1, 9)[4:] + padding))
    assert client.receive_frame()[:4] == size(9)


@pytest.mark.parametrize("length", [1, 4, 11, 12, 30])
def test_a_frame_that_is_cut_off_is_one_line(broker: Broker, client: Client, length: int) -> None:
    client.send_bytes(request_frame(MetadataRequest(topics=None), 1, client_id="x" * 100)[:length])
    client.socket.shutdown(socket.SHUT_WR)
    assert_closed(broker, client, "closed after")


@pytest.mark.parametrize("length", [2, 10, 40])
def test_a_frame_that_does_not_go_on_is_closed(broker: Broker, client: Client, length: int) -> None:
    client.send_bytes(request_frame(MetadataRequest(topics=None), 1, client_id="x" * 100)[:length])
    assert_closed(broker, client, "too slow")


def test_a_connection_that_never_sends_is_closed(broker: Broker, client: Client) -> None:
    assert_closed(broker, client, "idle")


def test_a_peer_that_goes_while_its_fetch_waits_is_not_kept(broker: Broker) -> None:
    with Client(broker.address) as client:
        client.create("parked")
        client.send(fetch_request("parked", max_wait_ms=2**31 - 1), 11)
        answer = client.receive_frame()  # when an idle connection would be closed
        assert answer


def test_a_peer_that_does_not_take_its_answers_is_closed(broker: Broker, client: Client) -> None:
    client.create("unread")
    client.append("unread", b"x" * 1_000_000)
    requests = request_frame(fetch_request("unread"), 11) * 200
    with contextlib.suppress(OSError):
        client.send_bytes(requests)
    assert_logged(broker, client, "too slow")


def test_a_thousand_connections_that_come_and_go_leave_nothing(broker: Broker) -> None:
    pids = broker.worker_pids()

    def descriptors() -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)

    before = descriptors()
    for _ in range(5):
        crowd = [socket.create_connection(broker.address) for _ in range(200)]
        for number, item in enumerate(crowd):
            if number % 3 == 0:
                item.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            if number % 3 == 1:
                item.sendall(b"\0\0")
            item.close()
    processes.wait_until(lambda: descriptors() <= before, "the descriptors of the connections")
    with WireClient(broker.address) as other:
        assert other.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


@pytest.fixture(params=CODECS[1:])
def bomb(request: pytest.FixtureRequest) -> tuple[int, bytes]:
    """Return a codec, and what a batch of 4 MB can hold of it at most: 20 to 20,000 times its size."""
    codec: int = request.param
    data = compress(codec, bytes(70_000_000 if codec == 2 else 500_000_000))
    assert len(data) < 3_900_000
    return codec, data


# The client comes after the bomb: made before, its connection may be closed for idleness while that is compressed.
def test_a_decompression_bomb_costs_no_more_than_the_limit(bomb: tuple[int, bytes], client: Client) -> None:
    codec, data = bomb
    client.create(f"bomb-{codec}", max_message_bytes="4000000")
    for _ in range(3):
        response = client.produce(f"bomb-{codec}", raw(data, codec=codec))
        assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE


REQUESTS = [cls for cls in all_messages() if cls.is_request()]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Draw a request with a header that is right and a body that is not, or only a little wrong."""
    cls = draw(st.sampled_from(REQUESTS))
    version = draw(st.integers(*cls.api.versions))
    head = header(cls.api.key, version) + (b"\0" if cls.api.is_flexible(version) else b"")
    if cls is type(GOOD) and draw(st.booleans()):
        body = bytearray(request_frame(GOOD, 8)[4 + len(header(0, 8)) :])
        for _ in range(draw(st.integers(1, 5))):
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        return header(0, 8) + bytes(body)
    return head + draw(st.binary(max_size=200))


GOOD = produce_request("garbage", batch(b"one", b"two"))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=requests())
def test_any_bytes_after_a_header_are_answered_or_close_the_connection(broker: Broker, data: bytes) -> None:
    with Client(broker.address) as client:
        client.send_bytes(frame(data) + request_frame(ApiVersionsRequest(), 0, 77))
        with contextlib.suppress(ClosedByBrokerError):
            while client.receive_frame()[:4] != size(77):
                pass


def test_a_request_whose_batches_together_are_huge_is_taken_in_a_few_at_a_time(
    broker: Broker, client: Client
) -> None:
    client.create("bombs", 80)
    zeros = batch(bytes(15_000_000), codec=ZSTD)  # within record.decompressed.max.bytes
    data = [PartitionProduceData(index=index, records=zeros) for index in range(80)]
    request = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name="bombs", partition_data=data)]
    )
    [answer] = client.call(request, 8).responses
    assert [partition_response.error_code for partition_response in answer.partition_responses] == [
        ErrorCode.NONE
    ] * 80
    assert max(memory_peak_bytes(pid) for pid in broker.worker_pids()) < MEMORY_BYTES_MAX


def test_many_bad_peers_are_few_lines_of_the_log(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker:
        for _ in range(250):
            with WireClient(broker.address) as client:
                client.send_bytes(size(-1) + bytes(20))
                assert client.is_closed_by_broker()
        assert 100 <= broker.log().count("connection closed") < 250
