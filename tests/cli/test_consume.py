"""`korvet consume`: from where on records are written, how they look, when it ends, and what a group gets of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from korvet.admin.client import AdminClient
from tests.cli.commands import Result, commit, committed, done, failed, read, run
from tests.cli.terminal import CTRL_C, at_terminal, exit_code
from tests.support import reading
from tests.support.batches import LINKED, MALFORMED
from tests.support.domain import domain
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.topic_client import Client

FORMATS = pytest.mark.parametrize("storage_format", ["record", "batch"])


READ_BY_AIOKAFKA = {
    LINKED,
    "one offset twice",
    "an offset of another batch",
    "an offset of an earlier batch",
    "a null key of length -2",
    "a null key, its varint beyond an int32",
    "a block of lz4 without bytes",
    "30 MB in 3 kB",
}
"""Malformed batches that are no hole to `korvet consume`, for its client library looks at less."""


def consume(broker: InProcessBroker, *arguments: str) -> Result:
    """Run `korvet consume` up to the end of the log."""
    return run("consume", "-b", broker.bootstrap, "--exit", *arguments)


def values(broker: InProcessBroker, *arguments: str) -> list[str]:
    return str(done(consume(broker, *arguments)).decode()).splitlines()


@FORMATS
def test_all_is_written_up_to_the_end(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    client.create(name, partitions=2, storage_format=storage_format)
    assert values(broker, name) == []
    client.append(name, b"a", b"b", partition=0)
    client.append(name, b"c", partition=1)
    assert sorted(values(broker, name)) == ["a", "b", "c"]
    assert values(broker, name, "-p", "1") == ["c"]
    assert sorted(values(broker, name, "-p", "1", "-p", "0", "-n", "2")) in (
        ["a", "b"],
        ["a", "c"],
        ["b", "c"],
    )


@FORMATS
def test_reading_begins_at_the_given_offset(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    client.create(name, storage_format=storage_format)
    first = client.append(name, b"a", b"b", b"c")
    last = client.append(name, b"d", b"e")
    for where, expected in (
        ("beginning", "abcde"),
        ("end", ""),
        (str(first + 1), "bcde"),
        (str(last), "de"),
        ("0", "abcde"),
        (str(2**62), ""),
        ("-0", ""),
        ("-1", "e"),
        ("-3", "cde"),
        ("-5", "abcde"),
        ("-99999", "abcde"),
    ):
        assert "".join(values(broker, name, "-o", where)) == expected, where


def test_reading_begins_at_a_time(broker: InProcessBroker, topic: str) -> None:
    records = [{"value": str(n), "timestamp": 1_700_000_000_000 + 1000 * n} for n in range(3)]
    reading.produce(broker.bootstrap, topic, *records)
    assert values(broker, topic, "-o", "@1700000000000") == ["0", "1", "2"]
    assert values(broker, topic, "-o", "@1700000000001") == ["1", "2"]
    assert values(broker, topic, "-o", "2023-11-14T22:13:22Z") == ["2"]
    assert values(broker, topic, "-o", "2023-11-14T23:13:22+01:00") == ["2"]
    assert values(broker, topic, "-o", "2024-01-01") == []


def test_records_are_written_as_a_template_says(broker: InProcessBroker, topic: str) -> None:
    first = {"key": "k", "value": "v\xe9", "headers": [("a", b"1"), ("b", None)]}
    for record in (first, {"key": None, "value": None}):
        reading.produce(broker.bootstrap, topic, {**record, "timestamp": 1700000000123})
    template = r"%t|%p|%o|%k|%s|%h|%T|%D|%S|%K|%%|\t|\\n%%\n"
    lines = values(broker, topic, "--format", template, "--null", "NULL")
    assert lines == [
        f"{topic}|0|0|k|vé|a=1,b=NULL|1700000000123|2023-11-14T22:13:20.123Z|3|1|%|\t|\\n%",
        f"{topic}|0|1|NULL|NULL||1700000000123|2023-11-14T22:13:20.123Z|-1|-1|%|\t|\\n%",
    ]
    assert values(broker, topic, "--long", "-n", "1") == [
        f"{topic}:0 0  2023-11-14T22:13:20.123Z  k  vé  a=1,b="
    ]


@FORMATS
def test_what_is_written_as_json_is_produced_again_byte_for_byte(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [("h", b"1"), ("h", None), ("b", b"\xff")]},
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {"key": b"\xff\xfe", "value": bytes(range(256))},
        {"value": "zwei\nZeilen \x1b[31m ü  "},
    ]
    for topic in (name, f"{name}-again"):
        client.create(topic, storage_format=storage_format)
    reading.produce(
        broker.bootstrap,
        name,
        *({**record, "timestamp": 1700000000000 + n} for n, record in enumerate(records)),
    )
    text = done(consume(broker, name, "--json"))
    assert text.count(b"\n") == len(records)
    assert all(line.decode().isprintable() for line in text.splitlines())
    done(run("produce", "-b", broker.bootstrap, f"{name}-again", "--json", given=text))

    def plain(topic: str) -> list[Any]:
        return [record[2:] for record in read(broker, topic, len(records))]

    assert plain(f"{name}-again") == plain(name)
    row = json.loads(text.splitlines()[3])
    assert (row["topic"], row["partition"], row["key_base64"]) == (name, 0, "//4=")
    assert (row["timestamp"], row["time"]) == (1700000000003, "2023-11-14T22:13:20.003Z")


def test_a_group_continues_at_its_committed_offsets(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    client.append(name, b"a", b"b", partition=0)
    client.append(name, b"c", partition=1)
    assert sorted(values(broker, name, "-g", name)) == ["a", "b", "c"]
    assert committed(broker, name, name) == [2, 1]
    client.append(name, b"d", b"e", b"f", partition=0)
    assert values(broker, name, "-g", name, "-n", "2") == ["d", "e"]
    assert committed(broker, name, name) == [4, 1]
    assert values(broker, name, "-g", name) == ["f"]
    assert values(broker, name, "-g", name) == []


def test_a_group_begins_at_the_end_on_request(broker: InProcessBroker, client: Client, topic: str) -> None:
    client.append(topic, b"a")
    assert values(broker, topic, "-g", f"{topic}-new", "-o", "end") == []
    commit(broker, topic, topic, 0)
    assert values(broker, topic, "-g", topic, "-o", "end") == ["a"]


@pytest.mark.slow
def test_more_is_waited_for_until_ctrl_c_which_commits_what_was_written_and_leaves_the_group(
    broker: InProcessBroker, client: Client, topic: str
) -> None:
    client.append(topic, b"first")
    with at_terminal("consume", "-b", broker.bootstrap, topic, "-g", topic) as child:
        child.expect_exact("first\r\n")
        client.append(topic, b"second")
        child.expect_exact("second\r\n")
        child.send(CTRL_C)
        assert exit_code(child) == 130
        assert "Traceback" not in child.before
    assert committed(broker, topic, topic) == [2]
    with AdminClient(broker.bootstrap) as admin:
        group = admin.groups.describe([topic])[topic]
    assert getattr(group, "state", group) == "Empty"


@pytest.mark.slow
def test_a_closed_pipe_ends_it_silently(broker: InProcessBroker, client: Client, topic: str) -> None:
    client.append(topic, *[b"x" * 100] * 5000)
    line = [sys.executable, "-m", "korvet", "consume", "-b", broker.bootstrap, topic]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x" * 100 + b"\n"
        process.stdout.close()
        assert process.wait(WAIT_SECONDS_MAX) == 1
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_an_interrupt_keeps_all_that_was_written(broker: InProcessBroker, client: Client, topic: str) -> None:
    client.append(topic, b"first")
    line = [sys.executable, "-m", "korvet", "consume", "-b", broker.bootstrap, topic]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=WAIT_SECONDS_MAX)
    # The end of the line that a terminal has written ^C into.
    assert (process.returncode, rest, errors) == (130, b"", b"\n")


@pytest.mark.slow
def test_values_do_nothing_to_a_terminal(broker: InProcessBroker, client: Client, topic: str) -> None:
    client.append(topic, b"a\x1b[31mb\x9b\xff\xc2\x9bc")
    assert done(consume(broker, topic)) == b"a\x1b[31mb\x9b\xff\xc2\x9bc\n"
    with at_terminal("consume", "-b", broker.bootstrap, topic, "--exit") as child:
        child.expect_exact("a\\x1b[31mb\\x9b\\xff\\x9bc\r\n")
        assert exit_code(child) == 0


def test_unknown_topics_and_partitions_are_an_error_and_not_created(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    message = failed(consume(broker, name))
    assert (
        message == f"Error: topic {name}: UNKNOWN_TOPIC_OR_PARTITION: there is no such topic or partition\n"
    )
    assert failed(consume(broker, name, "-g", name)) == message
    client.create(name)
    unknown = f"Error: partition {name}:1: UNKNOWN_TOPIC_OR_PARTITION: there is no such topic or partition\n"
    assert failed(consume(broker, name, "-p", "1")) == unknown


def test_several_topics_are_read_at_once(broker: InProcessBroker, client: Client, name: str) -> None:
    for number in range(2):
        client.create(f"{name}-{number}")
        client.append(f"{name}-{number}", b"%d" % number)
    template = ("--format", r"%t %s\n")
    expected = [f"{name}-0 0", f"{name}-1 1"]
    assert sorted(values(broker, f"{name}-0", f"{name}-1", *template)) == expected
    assert sorted(values(broker, f"{name}-0", f"{name}-1", *template, "-g", name)) == expected


def test_batches_that_do_not_decode_are_skipped_with_a_line_each(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    sound, holes = [], []
    with domain(broker.redis_url) as here:
        for kind in sorted(MALFORMED.keys() - READ_BY_AIOKAFKA):
            holes.append(here.put(name, MALFORMED[kind]))
            sound.append(here.append(name, b"sound"))
        holes.append(here.put(name, MALFORMED["zeros"]))
    for where, some in (
        (("-o", "beginning"), slice(None)),
        (("-o", "-2"), slice(-2, None)),
        (("-g", name), slice(None)),
        (("-g", name), slice(0)),
    ):
        result = consume(broker, name, "--format", "%o\\n", *where)
        assert [int(line) for line in result.stdout.split()] == sound[some]
        lines = [line.partition(" to ")[0] for line in result.stderr.decode().splitlines()]
        assert lines == [f"skipped: partition {name}:0, offsets {hole}" for hole in holes[some]]


def test_a_group_passes_batches_that_only_a_client_library_reads(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    with domain(broker.redis_url) as here:
        for kind in sorted(READ_BY_AIOKAFKA):
            here.put(name, MALFORMED[kind])
            here.append(name, b"sound")
    assert values(broker, name, "-g", name).count("sound") == len(READ_BY_AIOKAFKA)
    assert values(broker, name, "-g", name) == []
