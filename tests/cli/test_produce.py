"""`korvet produce`: the input arrives as records, and what does not is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands import Result, done, failed, read, run
from tests.cli.terminal import CTRL_C, CTRL_D, at_terminal, exit_code
from tests.lua.support import memory_left
from tests.support import redis_servers
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client


def produce(broker: InProcessBroker, topic: str, *arguments: str, given: bytes = b"") -> Result:
    """Run `korvet produce` with these bytes on standard input."""
    return run("produce", "-b", broker.bootstrap, topic, *arguments, given=given)


def test_each_line_is_a_record(broker: InProcessBroker, topic: str) -> None:
    assert done(produce(broker, topic, given=b"one\n\nth\xffree\r\nlast")) == b""
    result = read(broker, topic, 4)
    assert [record.value for record in result] == [b"one", b"", b"th\xffree\r", b"last"]
    assert {(record.key, record.headers) for record in result} == {(None, ())}


def test_keys_headers_and_nulls_are_what_the_flags_say(broker: InProcessBroker, topic: str) -> None:
    flags = ("--key-separator", "::", "-H", "source=web", "-H", "empty=", "--null", "NULL")
    done(produce(broker, topic, *flags, given=b"a::1\nb::NULL\nNULL::x::y\n"))
    result = read(broker, topic, 3)
    assert [(record.key, record.value) for record in result] == [(b"a", b"1"), (b"b", None), (None, b"x::y")]
    assert {record.headers for record in result} == {(("source", b"web"), ("empty", b""))}
    done(produce(broker, topic, "--key", "all", given=b"::\n"))
    assert [(record.key, record.value) for record in read(broker, topic, 4)][3] == (b"all", b"::")


def test_bytes_on_the_command_line_that_are_no_text_arrive_as_they_are(
    broker: InProcessBroker, topic: str
) -> None:
    odd = os.fsdecode(b"\xff")
    done(produce(broker, topic, "-K", odd, "-H", f"h={odd}", "--null", odd * 2, given=b"k\xff\xff\xff\n"))
    done(produce(broker, topic, "-k", odd, given=b"v\n"))
    first, second = read(broker, topic, 2)
    assert (first.key, first.value, first.headers) == (b"k", None, (("h", b"\xff"),))
    assert (second.key, second.value) == (b"\xff", b"v")
    template = f"%k{odd}%s\\n"
    assert done(
        run("consume", "-b", broker.bootstrap, topic, "--exit", "--format", template, "--null", odd)
    ) == (b"k\xff\xff\n\xff\xffv\n")
    assert "in UTF-8" in failed(produce(broker, topic, "-H", f"{odd}=x"), 2)


def test_null_bytes_end_records_that_hold_lines(broker: InProcessBroker, topic: str) -> None:
    done(produce(broker, topic, "-0", given=b"two\nlines\0second\0"))
    assert [record.value for record in read(broker, topic, 2)] == [b"two\nlines", b"second"]


def test_whole_files_are_records_of_a_topic_that_is_made_by_them(
    broker: InProcessBroker, name: str, tmp_path: Path
) -> None:
    contents = [b"first\nfile\n", b"", bytes(range(256)) * 2048]
    files = [tmp_path / str(number) for number in range(3)]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    done(produce(broker, name, *map(str, files), "--whole", "--key", "k"))
    assert [(record.key, record.value) for record in read(broker, name, 3)] == [(b"k", c) for c in contents]


def test_files_are_read_one_after_the_other(broker: InProcessBroker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a1\na2")
    done(produce(broker, topic, str(tmp_path / "a"), "-", given=b"b1\n"))
    assert [record.value for record in read(broker, topic, 3)] == [b"a1", b"a2", b"b1"]
    message = failed(produce(broker, topic, str(tmp_path / "none")))
    assert message == f"Error: {tmp_path}/none: No such file or directory\n"


@pytest.mark.parametrize(
    "flags",
    [
        *(("-z", codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
        ("--no-idempotence",),
        ("--acks", "1"),
        ("--acks", "0"),
    ],
)
def test_many_records_arrive_in_order(broker: InProcessBroker, topic: str, flags: tuple[str, ...]) -> None:
    values = [b"value %d" % number for number in range(3000)]
    done(produce(broker, topic, *flags, given=b"\n".join(values)))
    assert [record.value for record in read(broker, topic, len(values))] == values


def test_a_partition_may_be_named_and_must_be_there(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, partitions=3)
    done(produce(broker, name, "-p", "2", given=b"1\n2\n"))
    assert [record.value for record in read(broker, name, 2, partition=2)] == [b"1", b"2"]
    message = failed(produce(broker, name, "-p", "3", given=b"1\n2\n"))
    assert message == f"Error: line 1: topic {name} has no partition 3; no record was sent\n"


def test_keys_go_where_other_clients_send_them(broker: InProcessBroker, client: Client, name: str) -> None:
    from kafka.partitioner.default import murmur2

    client.create(name, partitions=5)
    keys = [b"key-%d" % number for number in range(20)]
    done(produce(broker, name, "-K:", given=b"".join(key + b":\n" for key in keys)))
    for partition in range(5):
        here = [key for key in keys if (murmur2(key) & 0x7FFFFFFF) % 5 == partition]
        assert [record.key for record in read(broker, name, len(here), partition)] == here


def test_lines_of_json_say_all_that_a_record_has(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    lines = [
        {"key": "ü", "value": "a\nb", "headers": [{"name": "h", "value": None}, {"name": "h", "value": "2"}]},
        {"value_base64": "/wA=", "timestamp": 1700000000000, "partition": 1},
        {"key": None, "value": None},
        {"key": None, "value": "x", "topic": "other", "offset": 7, "time": "then"},
    ]
    given = "\n".join(json.dumps(line) for line in lines).encode()
    done(produce(broker, name, "--json", "-p", "0", "-H", "all=1", given=given))
    result = read(broker, name, 4)
    assert [(record.key, record.value) for record in result] == [
        ("ü".encode(), b"a\nb"),
        (None, b"\xff\0"),
        (None, None),
        (None, b"x"),
    ]
    assert result[0].headers == (("h", None), ("h", b"2"), ("all", b"1"))
    assert result[1].timestamp == 1700000000000
    done(produce(broker, name, "--json", "--keep-partitions", given=json.dumps(lines[1]).encode()))
    assert read(broker, name, 1, partition=1)[0].value == b"\xff\0"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON: "),
        ("[]", "not a record: Expected `object`"),
        ('{"valeu": "x"}', "not a record: Object contains unknown field `valeu`"),
        ('{"value": 1}', "not a record: Expected `str | null`, got `int` - at `$.value`"),
        ('{"value": "a", "value_base64": "YQ=="}', "a text and its _base64: give only one of them"),
        ('{"value_base64": "a"}', "not a record: Invalid base64 encoded string - at `$.value_base64`"),
        ('{"value_base64": "ä"}', "not a record: Invalid base64 encoded string - at `$.value_base64`"),
        ('{"key": "\\ud800"}', "an unpaired surrogate"),
        ('{"headers": {"a": "b"}}', "not a record: Expected `array | null`, got `object` - at `$.headers`"),
        (
            '{"headers": [{"value": "b"}]}',
            "not a record: Object missing required field `name` - at `$.headers[0]`",
        ),
        ('{"timestamp": "now"}', "not a record: Expected `int | null`, got `str` - at `$.timestamp`"),
        ('{"timestamp": -5}', "not a record: Expected `int` >= 0 - at `$.timestamp`"),
        ('{"partition": true}', "not a record: Expected `int | null`, got `bool` - at `$.partition`"),
        ("[" * 100000, "not "),
    ],
)
def test_a_line_that_is_no_record_is_reported_and_those_before_it_are_delivered(
    broker: InProcessBroker, topic: str, line: str, why: str
) -> None:
    given = f'{{"value": "before"}}\n{line}\n{{"value": "after"}}\n'.encode()
    message = failed(produce(broker, topic, "--json", given=given))
    assert message.startswith(f"Error: line 2: {why}")
    assert message.endswith("; 1 of 1 sent records are delivered\n")
    assert message.count("\n") == 1
    assert [record.value for record in read(broker, topic, 1)] == [b"before"]


def test_a_line_without_its_key_is_named(broker: InProcessBroker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in\x1b").write_bytes(b"a:1\nb")
    message = failed(produce(broker, topic, "-K:", str(tmp_path / "in\x1b")))
    where = f"{tmp_path}/in\\x1b: line 2"
    assert message == f"Error: {where}: no ':' between key and value; 1 of 1 sent records are delivered\n"


def test_what_the_broker_refuses_is_named_with_its_reason(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, max_message_bytes="1000")
    message = failed(produce(broker, name, given=b"small\n" + b"x" * 2000 + b"\n"))
    assert message == (
        "Error: line 2: MESSAGE_TOO_LARGE: the record has 2000 bytes, and max.message.bytes is 1000; "
        "1 of 2 sent records are delivered\n"
    )
    client.create(f"{name}-compact", cleanup_policy="compact")
    message = failed(produce(broker, f"{name}-compact", given=b"no key\n"))
    assert message.startswith("Error: line 1: INVALID_RECORD: a record of a compacted topic needs a key; ")


def test_what_the_broker_refuses_for_long_ends_in_its_words(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name)
    more_than_a_client_keeps = b"x" * 10_000 + b"\n"
    with redis_servers.connected(broker.redis_url) as raw, memory_left(raw, -1):
        message = failed(produce(broker, name, "--timeout", "4", given=more_than_a_client_keeps * 200))
    assert message.startswith("Error: line 1: not delivered in 4 s: ")
    assert "memory" in message
    assert "; 0 of " in message
    assert message.count("\n") == 1


def test_no_batch_is_larger_than_the_topic_takes(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name, max_message_bytes="1000")
    values = [b"value %03d" % number for number in range(300)]
    done(produce(broker, name, given=b"\n".join(values)))
    assert [record.value for record in read(broker, name, len(values))] == values


def test_a_topic_that_cannot_be_is_one_line_of_error(broker: InProcessBroker) -> None:
    message = failed(produce(broker, "no topic", given=b"1\n"))
    assert "INVALID_TOPIC_EXCEPTION" in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_lines_typed_at_a_terminal_are_sent_as_they_are_typed(broker: InProcessBroker, topic: str) -> None:
    with at_terminal("produce", "-b", broker.bootstrap, topic) as child:
        child.send("first\r")
        assert read(broker, topic, 1)[0].value == b"first"
        child.send("second\r")
        child.send(CTRL_D)
        assert exit_code(child) == 0
    assert [record.value for record in read(broker, topic, 2)] == [b"first", b"second"]
    with at_terminal("produce", "-b", broker.bootstrap, topic) as child:
        child.send("third\r")
        read(broker, topic, 3)
        child.send(CTRL_C)
        assert exit_code(child) == 130
        assert "Traceback" not in child.before


@pytest.mark.slow
def test_a_terminal_shows_progress(broker: InProcessBroker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1234\n" * 2500)
    with at_terminal("produce", "-b", broker.bootstrap, topic, str(tmp_path / "lines")) as child:
        child.expect(r"2,500 records, 10\.0 kB, [\d,]+ records/s\r\n")
        assert exit_code(child) == 0
