"""Records as the console shows them: by offset and time, page by page, whatever they contain."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from korvet.admin.connection import Address
from korvet.admin.security import PLAINTEXT
from korvet.console.api_client import ApiClient
from korvet.console.query import Query
from korvet.console.records import content, records
from tests.support.batches import MALFORMED, TIMESTAMP, Record
from tests.support.broker import Broker
from tests.support.console import Caller
from tests.support.domain import domain
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

LAYOUTS = pytest.mark.parametrize(
    "configs",
    [{}, {"offset_encoding": "dense"}, {"storage_format": "batch"}],
    ids=["record", "dense", "batch"],
)


def texts(page: Any) -> list[str]:
    return [item["value"]["text"] for item in page["records"]]


@LAYOUTS
def test_the_newest_records_are_the_newest_of_all_partitions_and_others_follow(
    console: Caller, client: Client, name: str, configs: dict[str, str]
) -> None:
    client.create(name, partitions=3, **configs)
    # The newest ten are three of partition 0, seven of partition 1, and none of partition 2.
    for number in range(40):
        partition = 2 if number < 12 else 0 if number in {20, 34, 36, 38} else 1
        client.append(name, Record(b"%d" % number, None, 1000 + number), partition=partition)
    page = console.data("records", topic=name, count=10)
    assert texts(page) == [str(number) for number in range(30, 40)]
    assert [item["at"] for item in page["logs"]] == [item["end"] for item in page["logs"]]
    # All of them, if there are fewer.
    assert texts(console.data("records", topic=name, count=50)) == [str(number) for number in range(40)]
    # What comes afterwards is on the next page, and nothing else.
    client.append(name, b"40", partition=1)
    assert texts(console.data("records", topic=name, at=page["next"])) == ["40"]


def test_the_newest_of_large_records_are_the_newest_and_a_page_is_bounded(
    console: Caller, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    for number in range(20):
        client.append(name, b"%02d" % number + b"x" * 300_000)
    page = console.data("records", topic=name, count=50)
    assert [text[:2] for text in texts(page)] == [f"{number:02d}" for number in range(20)]
    reply = console.get("/api/records", topic=name, seek="earliest", count=200)
    assert reply.status == 200
    assert len(reply.body) < 200_000
    assert reply.data["records"]


@LAYOUTS
def test_pages_have_every_record_of_all_partitions_once(
    console: Caller, client: Client, name: str, configs: dict[str, str]
) -> None:
    client.create(name, partitions=3, **configs)
    for number in range(60):
        client.append(name, b"%d" % number, partition=min(number % 5, 2))
    page = console.data("records", topic=name, seek="earliest", count=7)
    result = []
    while page["records"]:
        assert len(page["records"]) <= 7
        result += texts(page)
        page = console.data("records", topic=name, at=page["next"], count=7)
    assert sorted(map(int, result)) == list(range(60))


@LAYOUTS
def test_records_are_found_by_offset_and_by_time(
    console: Caller, client: Client, name: str, configs: dict[str, str]
) -> None:
    client.create(name, partitions=2, **configs)
    offsets = [
        client.append(name, Record(b"%d" % number, None, 1000 + number), partition=1) for number in range(9)
    ]
    page = console.data("records", topic=name, partition=1, seek="offset", to=offsets[4])
    assert texts(page) == ["4", "5", "6", "7", "8"]
    assert [item["offset"] for item in page["records"]] == [str(offset) for offset in offsets[4:]]
    assert texts(console.data("records", topic=name, seek="time", to=1006)) == ["6", "7", "8"]
    assert texts(console.data("records", topic=name, seek="time", to=5000)) == []
    # An offset outside of the log is where the log begins or ends.
    assert texts(console.data("records", topic=name, partition=1, seek="offset", to=2**63 - 1)) == []
    assert len(texts(console.data("records", topic=name, partition=1, seek="offset", to=0))) == 9


def test_keys_values_and_headers_may_be_anything(console: Caller, client: Client, name: str) -> None:
    client.create(name)
    hostile = "<script>alert(1)</script>\u202e\0"
    client.append(name, Record(hostile.encode(), b"\xff\0", 5, [("a", None), ("a", b"\xfe"), (hostile, b"")]))
    client.append(name, Record(None, None, 6))
    first, second = console.data("records", topic=name)["records"]
    assert first["timestamp"] == 5
    assert first["key"] == {"bytes": 2, "base64": "/wA="}
    assert first["value"] == {"bytes": len(hostile.encode()), "text": hostile}
    assert first["headers"] == [
        {"name": "a", "value": None},
        {"name": "a", "value": {"bytes": 1, "base64": "/g=="}},
        {"name": hostile, "value": {"bytes": 0, "text": ""}},
    ]
    assert (second["key"], second["value"], second["header_count"]) == (None, None, 0)


def test_a_page_truncates_long_values_and_one_record_is_whole(
    console: Caller, client: Client, name: str
) -> None:
    client.create(name)
    headers = [(f"h{number}", b"x" * 1000) for number in range(20)]
    offset = client.append(name, Record("ü".encode() * 100_000, b"k" * 1000, 5, headers))
    [row] = console.data("records", topic=name)["records"]
    assert (row["value"]["bytes"], len(row["value"]["text"])) == (200_000, 1024)
    assert (len(row["key"]["text"]), len(row["headers"]), row["header_count"]) == (256, 16, 20)
    whole = console.data("record", topic=name, partition=0, offset=offset)
    assert whole["value"]["text"] == "ü" * 100_000
    assert [item["value"]["text"] for item in whole["headers"]] == ["x" * 1000] * 20
    assert console.get("/api/record", topic=name, partition=0, offset=offset + 1).status == 404
    assert console.get("/api/record", topic=name, partition=1, offset=offset).status == 404


@pytest.mark.parametrize("kind", ["30 MB in 3 kB", "zeros", "no frame of codec 1"])
@pytest.mark.parametrize("seek", ["earliest", "newest"])
def test_a_batch_that_cannot_be_read_does_not_hide_the_records_around_it(
    broker: Broker, console: Caller, client: Client, name: str, kind: str, seek: str
) -> None:
    client.create(name, storage_format="batch")
    with domain(broker.redis_url) as here:
        here.append(name, b"before")
        here.put(name, MALFORMED[kind])
        here.append(name, Record(b"after", timestamp=TIMESTAMP + 1))
    page = console.data("records", topic=name, seek=seek)
    assert texts(page) == ["before", "after"]
    [problem] = page["problems"]
    assert f"partition {name}:0, offsets 1 to 1: the records " in problem
    assert texts(console.data("records", topic=name, seek="time", to=TIMESTAMP + 1)) == ["after"]


@pytest.mark.parametrize("seek", ["earliest", "newest"])
def test_a_batch_that_the_broker_cannot_read_is_named_after_the_records_before_it(
    broker: Broker, console: Caller, client: Client, name: str, seek: str
) -> None:
    client.create(name, storage_format="batch")
    for value in (b"before", b"damaged", b"after"):
        client.append(name, value)
    with redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as connection:
        raw: Any = connection
        entries = raw.xrange(f"korvet:{name}:0")
        raw.delete(f"korvet:{name}:0")
        for entry_id, fields in entries:
            kept = {"batch": "garbage"} if entry_id == b"0-2" else fields
            raw.xadd(f"korvet:{name}:0", kept, id=entry_id)
    page = console.data("records", topic=name, seek=seek)
    assert texts(page) == ["before"]
    assert page["problems"] == [
        f"offset 1: partition {name}:0: CORRUPT_MESSAGE: the batch at this offset is damaged"
    ]


def test_newest_records_that_there_is_no_time_to_read_are_no_problem_but_unfinished(
    broker: Broker, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create(name, partitions=2)
    for partition in (0, 0, 1):
        client.append(name, b"x", partition=partition)
    query = Query(f"/api/records?topic={name}&count=2")
    with ApiClient(Address(*broker.address), 0, PLAINTEXT) as caller:
        assert records(caller, query)["unfinished"] == []
        monkeypatch.setattr("korvet.console.records._SECONDS_KEPT", 60)
        page = records(caller, query)
    assert (page["problems"], page["unfinished"]) == ([], [0, 1])
    assert [item["at"] < item["end"] for item in page["logs"]] == [True, True]


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
def test_an_invalid_position_is_refused(
    console: Caller, client: Client, name: str, parameters: dict[str, str]
) -> None:
    client.create(name)
    assert console.get("/api/records", topic=name, **parameters).status == 400


def test_too_many_partitions_are_not_read_together(console: Caller, client: Client, name: str) -> None:
    client.create(name, partitions=65)
    client.append(name, b"last", partition=64)
    assert "choose" in console.get("/api/records", topic=name).data["error"]
    assert texts(console.data("records", topic=name, partition=64)) == ["last"]
    assert console.get("/api/records", topic=name, partition=65).status == 404


@given(data=st.binary(max_size=50))
def test_content_has_all_bytes(data: bytes) -> None:
    shown = content(data, 50)
    assert shown is not None
    assert shown["bytes"] == len(data)
    assert (shown["text"].encode() if "text" in shown else base64.b64decode(shown["base64"])) == data


@given(text=st.text(min_size=1, max_size=40), limit=st.integers(4, 40))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    shown = content(text.encode(), limit)
    assert shown is not None
    assert text.startswith(shown["text"])
    assert limit - 3 <= len(shown["text"].encode()) <= limit or shown["text"] == text


def test_null_is_not_empty_and_bytes_that_are_not_text_are_cut_at_the_limit() -> None:
    assert content(None, 10) is None
    assert content(b"", 10) == {"bytes": 0, "text": ""}
    assert content(b"\xff" * 9, 4) == {"bytes": 9, "base64": base64.b64encode(b"\xff" * 4).decode()}
