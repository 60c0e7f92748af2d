"""Records as the console tells them: sought by offset and time, page by page, whatever they hold."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.protocol.records.compression import Codec
from tests.support.batches import Record, batch
from tests.support.console import Caller
from tests.support.topic_client import Client

FORMATS = pytest.mark.parametrize("form", ["record", "batch"])


def texts(page: Any) -> list[str]:
    return [each["value"]["text"] for each in page["records"]]


@FORMATS
def test_the_newest_records_are_found(console: Caller, client: Client, name: str, form: str) -> None:
    client.create(name, storage_format=form)
    for number in range(30):
        client.append(name, b"%d" % number)
    page = console.asked("records", topic=name, count=10)
    assert sorted(texts(page), key=int) == [str(number) for number in range(20, 30)]
    [log] = page["logs"]
    assert log["at"] == log["end"]
    # What comes afterwards is on the page behind, and nothing else.
    client.append(name, b"30")
    assert texts(console.asked("records", topic=name, at=page["next"])) == ["30"]


@FORMATS
def test_pages_have_every_record_of_all_partitions_once(
    console: Caller, client: Client, name: str, form: str
) -> None:
    client.create(name, partitions=3, storage_format=form)
    for number in range(60):
        client.append(name, b"%d" % number, partition=min(number % 5, 2))
    page = console.asked("records", topic=name, seek="earliest", count=7)
    found = []
    while page["records"]:
        assert len(page["records"]) <= 7
        found += texts(page)
        page = console.asked("records", topic=name, at=page["next"], count=7)
    assert sorted(map(int, found)) == list(range(60))


@FORMATS
def test_records_are_sought_by_offset_and_by_time(
    console: Caller, client: Client, name: str, form: str
) -> None:
    client.create(name, partitions=2, storage_format=form)
    offsets = [
        client.append(name, Record(b"%d" % number, None, 1000 + number), partition=1) for number in range(9)
    ]
    page = console.asked("records", topic=name, partition=1, seek="offset", to=offsets[4])
    assert texts(page) == ["4", "5", "6", "7", "8"]
    assert [each["offset"] for each in page["records"]] == [str(each) for each in offsets[4:]]
    assert texts(console.asked("records", topic=name, seek="time", to=1006)) == ["6", "7", "8"]
    assert texts(console.asked("records", topic=name, seek="time", to=5000)) == []
    # An offset outside of the log is where the log begins or ends.
    assert texts(console.asked("records", topic=name, partition=1, seek="offset", to=2**63 - 1)) == []
    assert len(texts(console.asked("records", topic=name, partition=1, seek="offset", to=0))) == 9


def test_what_a_record_holds_is_told_as_it_is(console: Caller, client: Client, name: str) -> None:
    client.create(name)
    hostile = "<script>alert(1)</script>\u202e\0"
    client.append(name, Record(hostile.encode(), b"\xff\0", 5, [("a", None), ("a", b"\xfe"), (hostile, b"")]))
    client.append(name, Record(None, None, 6))
    first, second = console.asked("records", topic=name)["records"]
    assert first["timestamp"] == 5
    assert first["key"] == {"bytes": 2, "base64": "/wA="}
    assert first["value"] == {"bytes": len(hostile.encode()), "text": hostile}
    assert first["headers"] == [
        {"name": "a", "value": None},
        {"name": "a", "value": {"bytes": 1, "base64": "/g=="}},
        {"name": hostile, "value": {"bytes": 0, "text": ""}},
    ]
    assert (second["key"], second["value"], second["header_count"]) == (None, None, 0)


def test_a_page_cuts_what_is_long_and_one_record_is_told_whole(
    console: Caller, client: Client, name: str
) -> None:
    client.create(name)
    headers = [(f"h{number}", b"x" * 1000) for number in range(20)]
    offset = client.append(name, Record("ü".encode() * 100_000, b"k" * 1000, 5, headers))
    [row] = console.asked("records", topic=name)["records"]
    assert (row["value"]["bytes"], len(row["value"]["text"])) == (200_000, 1024)
    assert (len(row["key"]["text"]), len(row["headers"]), row["header_count"]) == (256, 16, 20)
    whole = console.asked("record", topic=name, partition=0, offset=offset)
    assert whole["value"]["text"] == "ü" * 100_000
    assert [each["value"]["text"] for each in whole["headers"]] == ["x" * 1000] * 20
    assert console.get("/api/record", topic=name, partition=0, offset=offset + 1).status == 404
    assert console.get("/api/record", topic=name, partition=1, offset=offset).status == 404


def test_a_page_of_large_records_is_bounded(console: Caller, client: Client, name: str) -> None:
    client.create(name, storage_format="batch")
    for _ in range(20):
        client.append(name, b"x" * 300_000)
    reply = console.get("/api/records", topic=name, seek="earliest", count=200)
    assert reply.status == 200
    assert len(reply.body) < 200_000
    assert reply.data["records"]


def test_a_batch_that_grows_beyond_all_bounds_hides_nothing_behind_it(
    console: Caller, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    assert client.produce(name, batch(b"\0" * 20_000_000, codec=Codec.gzip)).error_code == 0
    client.append(name, b"behind")
    page = console.asked("records", topic=name, seek="earliest")
    assert texts(page) == ["behind"]
    [problem] = page["problems"]
    assert "before offset 1" in problem


def test_compacted_topics_are_read_over_their_gaps(console: Caller, client: Client, name: str) -> None:
    client.create(name, storage_format="batch", cleanup_policy="compact")
    client.append(name, Record(b"one", b"k"), Record(b"two", b"k"))
    assert texts(console.asked("records", topic=name, seek="earliest"))[-1] == "two"


@pytest.mark.parametrize(
    "parameters",
    [
        {"seek": "middle"},
        {"seek": "offset"},
        {"seek": "offset", "to": "-1"},
        {"seek": "time", "to": "yesterday"},
        {"partition": "one"},
        {"partition": "-1"},
        {"at": "0"},
        {"at": "0:x"},
        {"at": "0:1,"},
        {"count": "0"},
        {"count": "201"},
    ],
)
def test_a_place_that_is_none_is_refused(
    console: Caller, client: Client, name: str, parameters: dict[str, str]
) -> None:
    client.create(name)
    assert console.get("/api/records", topic=name, **parameters).status == 400


def test_of_many_partitions_one_is_to_be_chosen(console: Caller, client: Client, name: str) -> None:
    client.create(name, partitions=65)
    client.append(name, b"last", partition=64)
    assert "choose" in console.get("/api/records", topic=name).data["error"]
    assert texts(console.asked("records", topic=name, partition=64)) == ["last"]
    assert console.get("/api/records", topic=name, partition=65).status == 404
