"""korvet/log/remote/client.py with korvet/lake/service.py: a worker's requests, and what becomes of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import gevent
import msgspec
import pytest
from gevent import socket
from gevent.socket import wait_read

from korvet.errors import KafkaError
from korvet.lake.files import filesystem
from korvet.lake.table import Advance, Lake, LakeTopic
from korvet.log.remote import client as remote_client
from korvet.log.remote.client import LENGTH, RemoteClient, RemoteRequest, framed
from tests.lake.archives import write_file
from tests.lake.rows import records_to_arrow
from tests.log.lake import TOPIC, archived_lake
from tests.support import processes
from tests.support.batches import read
from tests.support.lake_service import LakeService, lake_service
from tests.support.proxy import turn, until

pytestmark = pytest.mark.slow

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
RECORDS = 1000
SECONDS = 30.0


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived_lake(tmp_path_factory.mktemp("lake"), TOPIC_ID, RECORDS)


@pytest.fixture(scope="module")
def service(lake: Path) -> Iterator[LakeService]:
    with lake_service(lake, lake) as running:
        yield running


@pytest.fixture
def client(service: LakeService) -> Iterator[RemoteClient]:
    result = RemoteClient(service.socket)
    yield result
    result.close()


def read_request(offset: int, *, archived: int = RECORDS, bytes_max: int = 1 << 20) -> RemoteRequest:
    return RemoteRequest(0, "read", TOPIC, TOPIC_ID, 0, offset, archived, bytes_max)


def test_archived_records_are_read(client: RemoteClient) -> None:
    answer = client.send(read_request(990)).finish(SECONDS)
    assert [record.offset for record in read(answer.data)] == list(range(990, RECORDS))
    assert (answer.record_count, answer.next_offset, answer.more) == (10, RECORDS, False)
    part = client.send(read_request(0, bytes_max=500)).finish(SECONDS)
    assert len(part.data) <= 500
    assert part.more
    assert part.next_offset == part.record_count == len(read(part.data))


def test_many_requests_share_one_connection_and_each_gets_its_own_answer(client: RemoteClient) -> None:
    calls = [(offset, client.send(read_request(offset, bytes_max=1))) for offset in range(0, RECORDS, 10)]
    for offset, item in reversed(calls):
        assert [record.offset for record in read(item.finish(SECONDS).data)] == [offset]


def test_an_error_of_the_lake_fails_that_request_only(client: RemoteClient) -> None:
    wrong, right = client.send(read_request(0, archived=RECORDS + 1)), client.send(read_request(0))
    with pytest.raises(KafkaError, match=r"^KAFKA_STORAGE_ERROR .*not archived up to 1001"):
        wrong.finish(SECONDS)
    assert right.finish(SECONDS).record_count == RECORDS


def test_a_file_that_is_missing_fails_each_request_and_is_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = Lake(str(tmp_path)).create(LakeTopic(TOPIC, TOPIC_ID))
    rows = records_to_arrow(0, [(0, 1000, None, b"v", [])])
    file = write_file(filesystem(table.uri), 0, [rows], now_ms=0)
    assert file is not None
    table.append([file], [Advance(0, 0, 1)])
    (tmp_path / TOPIC / TOPIC_ID / file.path).unlink()
    with lake_service(tmp_path, tmp_path) as running:
        client = RemoteClient(running.socket)
        for _ in range(20):
            with pytest.raises(KafkaError, match=f"{file.path} cannot be read"):
                client.send(read_request(0, archived=1)).finish(SECONDS)
        client.close()
    assert capfd.readouterr().err.count("the lake cannot be read") == 1


def test_a_reader_that_dies_is_one_error_and_a_new_one_is_found(lake: Path, tmp_path: Path) -> None:
    with lake_service(lake, tmp_path) as running:
        client = RemoteClient(running.socket)
        assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS
        running.process.send_signal(signal.SIGSTOP)
        waiting = client.send(read_request(0))
        running.process.kill()
        with pytest.raises(KafkaError, match="is away"):
            waiting.finish(SECONDS)
        running.process.wait(10)
        with pytest.raises(KafkaError, match="is away"):
            client.send(read_request(0))
    with lake_service(lake, tmp_path):
        assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS
    client.close()


def test_a_reader_that_does_not_answer_delays_only_requests_to_it(
    service: LakeService, client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_client, "UNDER_WAY_MAX", 2)
    assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS
    turns = 0

    def others() -> None:
        nonlocal turns
        for _ in range(5):
            turns += 1
            turn()

    with processes.stopped(service.process.pid):
        beside = gevent.spawn(others)
        late, dropped = client.send(read_request(0)), client.send(read_request(0))
        with pytest.raises(KafkaError, match="2 requests wait"):
            client.send(read_request(0))
        with pytest.raises(KafkaError, match="did not answer"):
            late.finish(0.05)
        dropped.abandon()
        beside.join()
        assert turns == 5
        after = client.send(read_request(990))
    # The answers that were dropped come first.
    assert after.finish(SECONDS).record_count == 10


def test_a_peer_that_sends_garbage_is_disconnected_and_others_are_served(
    service: LakeService, client: RemoteClient
) -> None:
    for data in (b"\xff" * 100, LENGTH.pack(5) + b"\xc1aaaa"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(service.socket))
            peer.sendall(data)
            assert peer.recv(1) == b""
    assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS


def test_a_request_past_its_deadline_is_not_served(client: RemoteClient) -> None:
    late = client.send(msgspec.structs.replace(read_request(0), until=0.0))
    with pytest.raises(KafkaError, match="timed out in the queue"):
        late.finish(SECONDS)
    assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS


def test_a_reader_that_receives_no_requests_is_disconnected(
    service: LakeService, client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_client, "_SEND_S_MAX", 0.05)
    assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS
    with processes.stopped(service.process.pid):
        with gevent.Timeout(SECONDS):
            while not (late := client.send(read_request(0))).wait(0):
                late.abandon()
        with pytest.raises(KafkaError, match="receives no requests"):
            late.finish(0)
    assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS


def frames(number: int, count: int = 1) -> bytes:
    return framed(msgspec.structs.replace(read_request(0), number=number)) * count


def test_a_worker_that_dies_before_its_answer_is_not_logged(
    lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with lake_service(lake, tmp_path) as running:
        client = RemoteClient(running.socket)
        threads = Path(f"/proc/{running.process.pid}/task")
        before = 0
        # Arrow starts its threads one by one, as it reads.
        for _ in range(5):
            client.send(read_request(0)).finish(SECONDS)
            before = max(before, len(list(threads.iterdir())))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(running.socket))
            peer.sendall(frames(1))
            # The answer lies there and is not read.
            wait_read(peer.fileno(), timeout=SECONDS)
        until(lambda: len(list(threads.iterdir())) <= before)
        client.close()
    assert capfd.readouterr().err.count("Traceback") == 0


def test_a_worker_that_receives_no_answers_delays_no_other(
    service: LakeService, client: RemoteClient
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hanging:
        hanging.connect(str(service.socket))
        # Each answer is 20 kB and more: every thread has one that it cannot send.
        hanging.sendall(frames(1, 100))
        assert client.send(read_request(0)).finish(SECONDS).record_count == RECORDS


def test_the_process_ends_with_its_parent(lake: Path, tmp_path: Path) -> None:
    with lake_service(lake, tmp_path) as running:
        pass
    assert running.process.returncode == 0
