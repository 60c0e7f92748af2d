"""korvet/log/remote/client.py with korvet/lake/service.py: a worker's questions, and what becomes of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import gevent
import msgspec
import pytest
from gevent import socket
from gevent.socket import wait_read

from korvet.errors import ErrorCode, KafkaError
from korvet.lake.decoding import records_to_arrow
from korvet.lake.files import filesystem, write_file
from korvet.lake.table import Advance, ArchiveTable
from korvet.log.remote import client as cold_store
from korvet.log.remote.client import LENGTH, RemoteClient, RemoteRequest, framed
from tests.support.batches import read
from tests.support.lake_service import LakeService, lake_service

TOPIC, TOPIC_ID = "orders", "AAAAAAAAAAAAAAAAAAAAAA"
RECORDS = 1000
SECONDS = 30.0


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake with one archived partition."""
    path = tmp_path_factory.mktemp("lake")
    table = ArchiveTable.create(str(path), TOPIC, TOPIC_ID)
    rows = records_to_arrow(0, [(at, 1000 + at, None, b"value %d" % at, []) for at in range(RECORDS)])
    file = write_file(filesystem(table.uri), 0, [rows], now_ms=0)
    assert file is not None
    table.append([file], [Advance(0, 0, RECORDS)])
    return path


@pytest.fixture
def service(lake: Path, tmp_path: Path) -> Iterator[LakeService]:
    with lake_service(lake, tmp_path) as running:
        yield running


@pytest.fixture
def store(service: LakeService) -> Iterator[RemoteClient]:
    found = RemoteClient(service.socket)
    yield found
    found.close()


def question(offset: int, *, archived: int = RECORDS, bytes_max: int = 1 << 20) -> RemoteRequest:
    return RemoteRequest(0, "read", TOPIC, TOPIC_ID, 0, offset, archived, bytes_max)


def by_time(kind: str, timestamp: int = -1) -> RemoteRequest:
    assert kind in ("first_from", "largest")
    return RemoteRequest(0, kind, TOPIC, TOPIC_ID, 0, 0, RECORDS, timestamp=timestamp)  # type: ignore[arg-type]  # checked


def test_archived_records_are_read(store: RemoteClient) -> None:
    answer = store.ask(question(990)).finish(SECONDS)
    assert [record.offset for record in read(answer.data)] == list(range(990, RECORDS))
    assert (answer.record_count, answer.next_offset, answer.more) == (10, RECORDS, False)
    part = store.ask(question(0, bytes_max=500)).finish(SECONDS)
    assert len(part.data) <= 500
    assert part.more
    assert part.next_offset == part.record_count == len(read(part.data))


def test_archived_records_are_found_by_time(store: RemoteClient) -> None:
    found = store.ask(by_time("first_from", 1500)).finish(SECONDS)
    assert (found.offset, found.timestamp) == (500, 1500)
    none = store.ask(by_time("first_from", 5000)).finish(SECONDS)
    assert (none.offset, none.timestamp) == (-1, -1)
    largest = store.ask(by_time("largest")).finish(SECONDS)
    assert (largest.offset, largest.timestamp) == (999, 1999)


def test_many_questions_share_one_connection_and_each_gets_its_own_answer(store: RemoteClient) -> None:
    asked = [(offset, store.ask(question(offset, bytes_max=1))) for offset in range(0, RECORDS, 10)]
    for offset, each in reversed(asked):
        assert [record.offset for record in read(each.finish(SECONDS).data)] == [offset]


def test_an_error_of_the_lake_is_that_questions_only(store: RemoteClient) -> None:
    wrong, right = store.ask(question(0, archived=RECORDS + 1)), store.ask(question(0))
    with pytest.raises(KafkaError, match="not archived up to 1001") as caught:
        wrong.finish(SECONDS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert right.finish(SECONDS).record_count == RECORDS


def test_a_reader_that_dies_is_one_error_and_a_new_one_is_found(lake: Path, tmp_path: Path) -> None:
    with lake_service(lake, tmp_path) as running:
        store = RemoteClient(running.socket)
        assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS
        running.process.send_signal(signal.SIGSTOP)
        waiting = store.ask(question(0))
        running.process.kill()
        with pytest.raises(KafkaError, match="is away"):
            waiting.finish(SECONDS)
        running.process.wait(10)
        with pytest.raises(KafkaError, match="is away"):
            store.ask(question(0))
    with lake_service(lake, tmp_path):
        assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS
    store.close()


def test_a_reader_that_says_nothing_costs_those_who_ask_it_only(
    service: LakeService, store: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_store, "UNDER_WAY_MAX", 2)
    assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS
    service.process.send_signal(signal.SIGSTOP)
    turns = 0

    def others() -> None:
        nonlocal turns
        for _ in range(5):
            turns += 1
            gevent.sleep(0)

    beside = gevent.spawn(others)
    late, dropped = store.ask(question(0)), store.ask(question(0))
    with pytest.raises(KafkaError, match="2 questions wait"):
        store.ask(question(0))
    with pytest.raises(KafkaError, match="did not answer"):
        late.finish(0.05)
    dropped.abandon()
    beside.join()
    assert turns == 5
    after = store.ask(question(990))
    service.process.send_signal(signal.SIGCONT)
    # The answers that nobody wants any more come first.
    assert after.finish(SECONDS).record_count == 10


def test_a_peer_that_is_none_loses_its_connection_and_others_are_served(
    service: LakeService, store: RemoteClient
) -> None:
    for data in (b"\xff" * 100, LENGTH.pack(5) + b"\xc1aaaa"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(service.socket))
            peer.sendall(data)
            assert peer.recv(1) == b""
    assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS


def test_a_question_for_whose_answer_nobody_waits_is_not_looked_up(store: RemoteClient) -> None:
    late = store.ask(msgspec.structs.replace(question(0), until=0.0))
    with pytest.raises(KafkaError, match="too many questions"):
        late.finish(SECONDS)
    assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS


def test_a_reader_that_takes_in_no_questions_is_left(
    service: LakeService, store: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_store, "_SEND_S_MAX", 0.05)
    assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS
    service.process.send_signal(signal.SIGSTOP)
    with gevent.Timeout(SECONDS):
        while not (late := store.ask(question(0))).wait(0):
            late.abandon()
    with pytest.raises(KafkaError, match="takes in no questions"):
        late.finish(0)
    service.process.send_signal(signal.SIGCONT)
    assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS


def asked(number: int, count: int = 1) -> bytes:
    return framed(msgspec.structs.replace(question(0), number=number)) * count


def test_a_worker_that_dies_before_its_answer_is_no_news(
    lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with lake_service(lake, tmp_path) as running:
        store = RemoteClient(running.socket)
        store.ask(question(0)).finish(SECONDS)
        # Those that Arrow wants are there by now.
        threads = Path(f"/proc/{running.process.pid}/task")
        before = len(list(threads.iterdir()))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(running.socket))
            peer.sendall(asked(1))
            # The answer lies there and is not read.
            wait_read(peer.fileno(), timeout=SECONDS)
        with gevent.Timeout(SECONDS):
            while len(list(threads.iterdir())) > before:
                gevent.sleep(0.01)
        store.close()
    assert capfd.readouterr().err.count("Traceback") == 0


def test_a_worker_that_takes_in_no_answers_costs_itself_only(
    service: LakeService, store: RemoteClient
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hanging:
        hanging.connect(str(service.socket))
        # Each is answered with 20 kB and more: every thread has one that it cannot get rid of.
        hanging.sendall(asked(1, 100))
        assert store.ask(question(0)).finish(SECONDS).record_count == RECORDS


def test_the_process_ends_with_its_parent(lake: Path, tmp_path: Path) -> None:
    with lake_service(lake, tmp_path) as running:
        pass
    assert running.process.returncode == 0
