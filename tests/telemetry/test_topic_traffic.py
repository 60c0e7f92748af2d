"""The files in which workers keep their counts of topics."""

from __future__ import annotations

import os
import struct
import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from korvet.telemetry.topic_counters import TopicTraffic, Traffic, TrafficFile, name_of, read, slot_of
from tests.telemetry.test_traffic import topic


class Clock:
    """Seconds that pass as a test says: `step` at each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 1000.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_slot_and_its_file_name_each_other() -> None:
    assert name_of("worker12") == "traffic_worker12.rows"
    assert slot_of(Path("directory") / name_of("worker12")) == "worker12"


def test_what_was_published_is_read_and_the_next_holder_of_the_slot_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    assert read(path) == []
    for round_ in (1, 2):
        traffic = Traffic()
        file = TrafficFile(path, traffic)
        traffic.received(*topic("orders"), 2, 100)
        assert file.publish()
        assert read(path) == [TopicTraffic("orders", "one", 2 * round_, 100 * round_)]
        file.close()


def test_fewer_topics_leave_nothing_of_more(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    traffic = Traffic()
    file = TrafficFile(path, traffic, Clock(0))
    for number in range(100):
        traffic.received(*topic(f"topic-{number}", topic_id=str(number)), 1, 1)
    assert file.publish()
    assert len(read(path)) == 100
    traffic.keep(lambda _name, topic_id: topic_id == "7")
    assert file.publish()
    assert read(path) == [TopicTraffic("topic-7", "7", 1, 1)]
    file.close()


def test_writing_takes_no_more_than_a_hundredth_of_the_time(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    traffic, clock = Traffic(), Clock(0.5)
    file = TrafficFile(path, traffic, clock)
    traffic.received(*topic("orders"), 1, 1)
    assert file.publish()
    traffic.received(*topic("orders"), 1, 1)
    assert not file.publish()
    assert read(path) == [TopicTraffic("orders", "one", 1, 1)]
    clock.now += 50
    assert file.publish()
    traffic.received(*topic("orders"), 1, 1)
    # Its end is the last chance.
    file.close()
    assert read(path) == [TopicTraffic("orders", "one", 3, 3)]


def test_nothing_is_written_where_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    file = TrafficFile(path, Traffic())
    assert file.publish()
    file.close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("cut", [0, 3, 8, 20])
def test_a_file_whose_writer_died_half_way_is_as_good_as_none(tmp_path: Path, cut: int) -> None:
    path = tmp_path / name_of("worker0")
    traffic = Traffic()
    file = TrafficFile(path, traffic)
    traffic.received(*topic("orders"), 2, 100)
    file.publish()
    file.close()
    path.write_bytes(path.read_bytes()[:cut])
    assert read(path) == []
    assert TrafficFile(path, Traffic()).publish()


@pytest.mark.parametrize("rows", [[["orders"]], [["orders", "one", "many"]], {"orders": 1}])
def test_a_file_of_another_version_is_as_good_as_none(tmp_path: Path, rows: object) -> None:
    """After an upgrade in place the workers of the version before are replaced one by one, and their files stay."""
    path = tmp_path / name_of("worker0")
    data = msgspec.msgpack.encode(rows)
    path.write_bytes(struct.pack("=II", len(data), zlib.crc32(data)) + data)
    assert read(path) == []
    traffic = Traffic()
    file = TrafficFile(path, traffic)
    traffic.received(*topic("orders"), 2, 100)
    file.close()
    assert read(path) == [TopicTraffic("orders", "one", 2, 100)]


def test_a_file_of_a_version_that_counts_more_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    data = msgspec.msgpack.encode([["orders", "one", 1, 2, 3, 4, 5, 6]])
    path.write_bytes(struct.pack("=II", len(data), zlib.crc32(data)) + data)
    assert read(path) == [TopicTraffic("orders", "one", 1, 2, 3, 4)]


def test_a_reader_beside_a_writer_sees_whole_counts(tmp_path: Path) -> None:
    path = tmp_path / name_of("worker0")
    traffic = Traffic()
    file = TrafficFile(path, traffic, Clock(0))
    for number in range(2000):
        traffic.received(*topic(f"topic-{number}", topic_id=str(number)), 1, 0)
    file.publish()
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for number in range(2000):
                traffic.received(*topic(f"topic-{number}", topic_id=str(number)), 1, 0)
            file.publish()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [{row.received_records for row in read(path)} for _ in range(200)]
    finally:
        done.set()
        writer.join()
    file.close()
    # A reader that met the writer each time has nothing rather than halves.
    assert [counts for counts in seen if len(counts) > 1] == []
    assert any(seen)


def test_a_full_disk_is_told_once_and_loses_no_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name_of("worker0")
    traffic = Traffic()
    file = TrafficFile(path, traffic, Clock(0))
    full = os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(file.fileno())
    os.dup2(full, file.fileno())
    for _ in range(2):
        traffic.received(*topic("orders"), 1, 1)
        file.publish()
    assert sum("not published" in record.getMessage() for record in caplog.records) == 1
    os.dup2(kept, file.fileno())
    traffic.received(*topic("orders"), 1, 1)
    file.close()
    assert read(path) == [TopicTraffic("orders", "one", 3, 3)]
    os.close(full)
    os.close(kept)
