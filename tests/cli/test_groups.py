"""`korvet groups`: what it lists, shows, deletes and resets, of groups that other clients are in."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from threading import Thread

import pytest

from korvet.console.http import Answer, HttpServer
from tests.cli.commands import (
    NOWHERE,
    at_broker,
    commit,
    committed,
    done,
    done_as_json,
    failed,
    json_at_broker,
    korvet,
    korvet_process,
    table,
)
from tests.cli.terminal import CTRL_C, CTRL_D, at_terminal, exit_code
from tests.support.batches import Record
from tests.support.group_consumer import joined, sharing, streaming
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client

groups = partial(at_broker, "groups")
as_json = partial(json_at_broker, "groups")


def test_groups_are_listed_with_their_states(broker: InProcessBroker, topic: str) -> None:
    commit(broker, topic, topic, 0)
    printed = done(groups(broker, "list"))
    assert [topic, "Empty", "-", "classic"] in table(printed)
    [row] = [item for item in as_json(broker, "list", "--state", "Empty") if item["group"] == topic]
    assert (row["state"], row["protocol_type"]) == ("Empty", "")
    assert topic not in [item["group"] for item in as_json(broker, "list", "--state", "Stable")]
    assert done(groups(broker, "list", "--state", "Dead")) == "no such groups\n"
    assert topic not in [item["group"] for item in as_json(broker, "list", "--type", "consumer")]
    assert topic in [item["group"] for item in as_json(broker, "list", "--type", "classic")]


@pytest.mark.parametrize("storage_format", ["batch", "record"])
def test_a_group_is_described_by_partitions_with_its_lag_if_offsets_are_dense(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    client.create(name, partitions=3, storage_format=storage_format, offset_encoding="dense")
    client.append(name, *[b"value"] * 5, partition=0)
    client.append(name, b"value", partition=1)
    commit(broker, name, name, 2, 1)
    printed = done(groups(broker, "describe", name))
    assert printed.splitlines()[0] == f"{name}: Empty, 0 members"
    assert table(printed) == [[name, "0", "2", "5", "3", "-"], [name, "1", "1", "1", "0", "-"]]


@contextlib.contextmanager
def metrics(page: bytes) -> Iterator[str]:
    """Serve a page as /metrics; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(listener, lambda _request: Answer(HTTPStatus.OK, "text/plain", page))
        Thread(target=server.serve_forever, daemon=True).start()
        yield "{}:{}".format(*listener.getsockname())
        server.shutdown()


COUNTED = """\
korvet_consumer_group_lag_records{group="NAME",partition="0",topic="NAME"} 3
korvet_consumer_group_lag_seconds{group="NAME",partition="0",topic="NAME"} 3.5
"""
LAGS: dict[str, tuple[str | None, list[tuple[int | None, float | None]], list[list[str]]]] = {
    "not asked for": (None, [(None, None), (0, 0.0)], [["-"], ["0"]]),
    "not counted yet": ("", [(None, None), (0, 0.0)], [["uncounted", "uncounted"], ["0", "0.0"]]),
    "counted": (COUNTED, [(3, 3.5), (0, 0.0)], [["3", "3.5"], ["0", "0.0"]]),
}


@pytest.mark.parametrize(("page", "lags", "cells"), LAGS.values(), ids=LAGS)
def test_a_lag_that_offsets_do_not_show_is_what_the_metrics_say(
    broker: InProcessBroker,
    client: Client,
    name: str,
    page: str | None,
    lags: list[tuple[int | None, float | None]],
    cells: list[list[str]],
) -> None:
    client.create(name, partitions=2, storage_format="record")
    ends = [client.append(name, *[b"value"] * 5, partition=index) + 5 for index in (0, 1)]
    commit(broker, name, name, ends[0] - 3, ends[1])
    with metrics((page or "").replace("NAME", name).encode()) as address:
        asked = ["describe", name, *(["--metrics", address] if page is not None else [])]
        *lines, note = done(groups(broker, *asked)).splitlines()
        [described] = as_json(broker, *asked)
    assert [(row["lag"], row.get("lag_seconds")) for row in described["offsets"]] == lags
    assert [row["end"] for row in described["offsets"]] == ends
    assert [row[4:-1] for row in table("\n".join(lines))] == cells
    assert note.startswith(f"Lag counts records. Offsets of {name} are times")


@pytest.mark.parametrize(("storage_format", "count"), [("batch", 3), ("record", None)])
def test_where_nothing_is_committed_a_lag_is_up_to_the_whole_log(
    broker: InProcessBroker, client: Client, name: str, storage_format: str, count: int | None
) -> None:
    client.create(name, storage_format=storage_format)
    client.append(name, b"one", b"two", b"three")
    # As it was counted before the offsets were deleted.
    stale = f'korvet_consumer_group_lag_records{{group="{name}",topic="{name}",partition="0"}} 7\n'
    with joined(broker.bootstrap, name, name), metrics(stale.encode()) as address:
        _, _, line, *_ = done(groups(broker, "describe", name, "--metrics", address)).splitlines()
        [described] = as_json(broker, "describe", name, "--metrics", address)
    [row] = described["offsets"]
    assert (row["lag"], row["lag_seconds"], row["uncommitted"]) == (None, None, count)
    lag = "-" if count is None else f"up to {count}"
    assert re.split(r"\s{2,}", line) == [name, "0", "-", str(row["end"]), lag, "-", row["member"]]


def test_unreachable_metrics_are_an_error(broker: InProcessBroker, topic: str) -> None:
    commit(broker, topic, topic, 0)
    assert "no metrics of 127.0.0.1:1" in failed(
        groups(broker, "describe", topic, "--metrics", "127.0.0.1:1")
    )
    wrong = groups(broker, "describe", topic, "--metrics", broker.bootstrap)
    assert broker.bootstrap in failed(wrong)
    failed(groups(broker, "describe", topic, "--metrics", "host:x"), 2)


def test_members_are_described_with_their_partitions(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    with joined(broker.bootstrap, name, name, instance="desk-1"):
        [group] = as_json(broker, "describe", name)
        assert (group["state"], group["protocol_type"], group["protocol"]) == ("Stable", "consumer", "range")
        [member] = group["members"]
        assert member["partitions"] == [f"{name}:0", f"{name}:1"]
        assert [row["member"] for row in group["offsets"]] == [member["member"]] * 2
        assert [row["committed"] for row in group["offsets"]] == [None, None]
        result = groups(broker, "describe", name, "--members")
        assert result.stdout.splitlines()[0] == f"{name}: Stable, 1 member, range"
        [row] = table(result.stdout)
        assert row[:4] == [member["member"], "desk-1", "reader", "/127.0.0.1"]
        assert row[-2:] == [f"{name}:0", f"{name}:1"]


@pytest.mark.parametrize(("kind", "protocol", "head"), [("share", "simple", ", simple"), ("streams", "", "")])
def test_a_share_or_streams_group_is_listed_described_by_its_members_and_deleted(
    broker: InProcessBroker, client: Client, name: str, kind: str, protocol: str, head: str
) -> None:
    client.create(name, partitions=2)
    with (sharing if kind == "share" else streaming)(client, name, name) as member_id:
        assert [name, "Stable", kind, kind] in table(done(groups(broker, "list", "--type", kind)))
        printed = done(groups(broker, "describe", "--members", name)).splitlines()
        assert printed[0] == f"{name}: Stable, 1 member{head}"
        [member] = table("\n".join(printed[1:]))
        assert member == [member_id, "-", "wire", "/127.0.0.1", f"{name}:0", f"{name}:1"]
        [described] = as_json(broker, "describe", name)
        assert (described["type"], described["protocol"]) == (kind, protocol)
        assert "NON_EMPTY_GROUP" in failed(groups(broker, "delete", "--yes", name))
    assert done(groups(broker, "delete", "--yes", name)) == f"deleted {name}\n"


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_the_starts_of_a_share_group_are_reset(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    topic_id = client.create(name, partitions=2, storage_format=storage_format)
    consumer = ShareConsumer(client, name, name).on(topic_id)
    assert consumer.poll() == []
    start = client.append(name, b"1", b"2", b"3", b"4")
    consumer.accept(consumer.poll())
    assert "stop all of them" in failed(groups(broker, "reset-offsets", name, "--to-latest", "--all-topics"))
    consumer.leave()
    shift = ("reset-offsets", name, "--shift-by", "-3", "--all-topics")
    printed = table(done(groups(broker, *shift)))
    assert printed[0] == [name, "0", str(start + 4), str(start + 1)]
    done(groups(broker, *shift, "--execute"))
    [described] = as_json(broker, "describe", name)
    assert described["offsets"][0]["start"] == start + 1
    again = ShareConsumer(client, name, name).on(topic_id)
    assert [item.value for item in again.poll()] == [b"2", b"3", b"4"]
    again.leave()
    # A partition that the group has not begun begins there.
    done(groups(broker, "reset-offsets", name, "--to-offset", "0", "--topic", f"{name}:1", "--execute"))
    [described] = as_json(broker, "describe", name)
    assert described["offsets"][1]["start"] is not None


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_share_group_is_described_by_partitions_with_its_starts_and_lag(
    broker: InProcessBroker, client: Client, name: str, storage_format: str
) -> None:
    topic_id = client.create(name, partitions=2, storage_format=storage_format)
    consumer = ShareConsumer(client, name, name).on(topic_id)
    assert consumer.poll() == []
    start = client.append(name, b"1", b"2", b"3", b"4")
    first, _, third, _ = consumer.poll()
    consumer.accept([first, third])
    printed = done(groups(broker, "describe", name)).splitlines()
    assert printed[0] == f"{name}: Stable, 1 member, simple"
    assert printed[1].split() == ["Topic", "Partition", "Start", "End", "Lag"]
    assert table("\n".join(printed[1:]))[0] == [name, "0", str(start + 1), str(start + 4), "2"]
    [described] = as_json(broker, "describe", name)
    nothing = dict.fromkeys(("committed", "metadata", "lag_seconds", "uncommitted", "member"))
    begun, not_begun = described["offsets"]
    figures = {"start": start + 1, "end": start + 4, "lag": 2}
    assert begun == nothing | {"topic": name, "partition": 0} | figures
    assert (not_begun["partition"], not_begun["start"], not_begun["lag"]) == (1, None, None)
    page = f'korvet_consumer_group_lag_seconds{{group="{name}",partition="0",topic="{name}"}} 3.5\n'
    shown = []
    for text in (page, ""):
        with metrics(text.encode()) as address:
            shown.append(table(done(groups(broker, "describe", name, "--metrics", address)))[0][4:])
    assert shown == [["2", "3.5"], ["2", "uncounted"]]


def test_an_unknown_group_fails_and_the_others_are_described(broker: InProcessBroker, topic: str) -> None:
    commit(broker, topic, topic, 0)
    result = groups(broker, "describe", "nobody", topic)
    assert failed(result) == "Error: group nobody: GROUP_ID_NOT_FOUND: Group nobody not found.\n"
    assert f"{topic}: Empty" in result.stdout
    assert topic in [group["group"] for group in as_json(broker, "describe", "--all-groups")]


def test_a_topic_that_is_gone_leaves_its_group(broker: InProcessBroker, client: Client, topic: str) -> None:
    commit(broker, topic, topic, 0)
    client.delete(topic)
    printed = done(groups(broker, "describe", topic))
    assert printed == f"{topic}: Empty, 0 members\nno committed offsets and no assigned partitions\n"
    members = done(groups(broker, "describe", topic, "--members"))
    assert members == f"{topic}: Empty, 0 members\nno members\n"


def test_names_do_nothing_to_a_terminal(broker: InProcessBroker, topic: str) -> None:
    group = f"[red]{topic}\x1b[31m\n"
    commit(broker, group, topic, 0)
    text = groups(broker, "list").stdout
    assert f"[red]{topic}\\x1b[31m\\n" in text
    assert "\x1b" not in text
    assert group in [item["group"] for item in as_json(broker, "list")]


@pytest.mark.slow
def test_a_group_is_deleted_once_that_is_confirmed(broker: InProcessBroker, topic: str) -> None:
    commit(broker, topic, topic, 7)
    for answer in ("n\r", "\r", CTRL_D, CTRL_C):
        with at_terminal("groups", "delete", "-b", broker.bootstrap, topic) as child:
            child.expect_exact(f"Delete {topic} with all committed offsets? [y/N]")
            child.send(answer)
            child.expect_exact("nothing is deleted")
            assert exit_code(child) == 1
    assert committed(broker, topic, topic) == [7]
    with at_terminal("groups", "delete", "-b", broker.bootstrap, topic) as child:
        child.expect_exact("[y/N]")
        child.send("y\r")
        child.expect_exact(f"deleted {topic}\r\n")
        assert exit_code(child) == 0
    assert committed(broker, topic, topic) == []


@pytest.mark.slow
@pytest.mark.parametrize("piped", ["", "y\n"])
def test_without_a_terminal_and_without_yes_nothing_is_deleted(
    broker: InProcessBroker, topic: str, piped: str
) -> None:
    commit(broker, topic, topic, 7)
    result = korvet_process("groups", "delete", "-b", broker.bootstrap, topic, given=piped)
    assert failed(result) == "Error: nothing is deleted: confirm at a terminal, or give --yes\n"
    assert result.stdout == ""
    assert committed(broker, topic, topic) == [7]


def test_groups_that_cannot_be_deleted_do_not_keep_others(broker: InProcessBroker, topic: str) -> None:
    commit(broker, f"{topic}-idle", topic, 1)
    with joined(broker.bootstrap, topic, topic):
        result = groups(broker, "delete", "--yes", topic, "nobody", f"{topic}-idle")
    assert result.stdout == f"deleted {topic}-idle\n"
    message = failed(result)
    assert f"Error: group {topic}: NON_EMPTY_GROUP" in message
    assert "Error: group nobody: GROUP_ID_NOT_FOUND" in message


def test_the_outcome_of_each_group_is_printed_as_json(broker: InProcessBroker, topic: str) -> None:
    commit(broker, topic, topic, 1)
    assert as_json(broker, "delete", "--yes", topic) == [{"group": topic, "error": None}]


@pytest.mark.parametrize(
    "line",
    [
        *("groups list", "groups describe a", "groups delete --yes a", "consume a", "produce a /dev/null"),
        *("cluster describe", "topics list", "configs describe --cluster"),
    ],
)
def test_an_unreachable_broker_is_one_line_of_error(line: str) -> None:
    result = korvet(*line.split(), *NOWHERE)
    message = failed(result)
    assert result.stdout == ""
    assert "127.0.0.1:1" in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_a_command_that_waits_for_a_broker_says_so() -> None:
    line = [sys.executable, "-m", "korvet", "groups", "list", "-b", "127.0.0.1:1", "--timeout", "600"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        notice = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_SECONDS_MAX)
    assert re.fullmatch(
        r"no connection to 127\.0\.0\.1:1: Connection refused; retrying for \d+ s more\n", notice
    )
    assert (process.returncode, output, errors) == (130, "", "\n")


FIRST_MS = 1_700_000_000_000


def reset(broker: InProcessBroker, group: str, *arguments: str) -> list[tuple[str, int, int | None, int]]:
    """Run the command; returns topic, partition, offset before and after of each line."""
    printed = done_as_json("groups", "reset-offsets", "-b", broker.bootstrap, group, *arguments)
    assert printed["group"] == group
    assert printed["executed"] is ("--execute" in arguments)
    return [(row["topic"], row["partition"], row["before"], row["after"]) for row in printed["offsets"]]


def filled(broker: InProcessBroker, client: Client, name: str) -> None:
    """Make a topic with ten records a second apart in partition 0, and a group that has come to offset 4."""
    client.create(name, partitions=2)
    client.append(name, *(Record(timestamp=FIRST_MS + 1000 * number) for number in range(10)))
    commit(broker, name, name, 4)


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "99"], 10),
        (["--to-timestamp", str(FIRST_MS + 2500)], 3),
        (["--to-timestamp", str(FIRST_MS + 99_000)], 10),
        (["--to-timestamp", "0"], 0),
        (["--to-datetime", "2023-11-14T22:13:25"], 5),
        (["--to-datetime", "2023-11-14T23:13:25.001+01:00"], 6),
        (["--by-duration", "P36500D"], 0),
        (["--by-duration", "PT1H30M0.5S"], 10),
        (["--shift-by", "3"], 7),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-30"], 0),
    ],
)
def test_each_target_is_shown_and_reached_by_execute(
    broker: InProcessBroker, client: Client, name: str, target: list[str], after: int
) -> None:
    filled(broker, client, name)
    moved = [(name, 0, 4, after)]
    assert reset(broker, name, "--all-topics", *target) == moved
    assert committed(broker, name, name) == [4]
    assert reset(broker, name, "--all-topics", *target, "--execute") == moved
    assert committed(broker, name, name) == [after]


def test_a_duration_is_counted_back_from_now(broker: InProcessBroker, client: Client, topic: str) -> None:
    now = int(time.time() * 1000)
    client.append(topic, *(Record(timestamp=now - hours * 3_600_000) for hours in (50, 30, 10)))
    assert reset(broker, topic, "--topic", topic, "--by-duration", "P1DT12H") == [(topic, 0, None, 1)]


def test_topics_and_partitions_may_be_named(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    other = f"{name}-other"
    client.create(other, partitions=3)
    whole = [(name, 0, 4, 0), (name, 1, None, 0)]
    assert reset(broker, name, "--topic", name, "--to-earliest") == whole
    some = [(name, 1, None, 0), (other, 0, None, 0), (other, 2, None, 0)]
    asked = ["--topic", f"{name}:1", "--topic", f"{other}:2,0,2", "--to-earliest", "--execute"]
    assert reset(broker, name, *asked) == some
    assert (committed(broker, name, name), committed(broker, name, other)) == ([4, 0], [0, 0])


def test_a_new_group_is_created_by_its_offsets(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    group = f"{name} new"
    assert reset(broker, group, "--topic", name, "--to-latest", "--execute")[0] == (name, 0, None, 10)
    assert committed(broker, group, name) == [10, 0]


def test_the_table_says_whether_anything_was_changed(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    filled(broker, client, name)
    arguments = ("reset-offsets", name, "--all-topics", "--to-earliest")
    planned, executed = (done(groups(broker, *arguments, flag)) for flag in ("--dry-run", "--execute"))
    for text in (planned, executed):
        assert [name, "0", "4", "0"] in [line.split() for line in text.splitlines()]
    assert "nothing is changed" in planned
    assert "nothing is changed" not in executed


def test_a_group_with_members_is_refused(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)
    with joined(broker.bootstrap, name, name):
        result = groups(broker, "reset-offsets", name, "--all-topics", "--to-earliest", "--execute")
    assert "is Stable, members: 1;" in failed(result)
    assert result.stdout == ""
    assert committed(broker, name, name) == [4]


def test_an_impossible_reset_changes_nothing(broker: InProcessBroker, client: Client, name: str) -> None:
    filled(broker, client, name)

    def refusal(*arguments: str) -> str:
        return failed(groups(broker, "reset-offsets", *arguments, "--execute"))

    assert "UNKNOWN_TOPIC_OR_PARTITION" in refusal(name, "--topic", f"{name}-not", "--to-earliest")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refusal(name, "--topic", f"{name}:0,9", "--to-earliest")
    assert "no offset of" in refusal(name, "--topic", name, "--shift-by", "1")
    assert "no offsets: name the topics" in refusal(f"{name} new", "--all-topics", "--to-earliest")
    assert committed(broker, name, name) == [4]
