"""Scripts on keys that somebody has damaged: each does its work, or names what is wrong and has written nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from korvet.topics.entry_ids import DENSE
from tests.lua.support import (
    ABORTED,
    CLEAN,
    EPOCH,
    INDEX,
    MOVING,
    SHARE,
    SIDE_KEYS,
    STATE,
    STREAM,
    TOPIC_ID,
    BatchLog,
    Log,
    Saved,
    contents,
    refused,
    run,
)

FIELDS = (
    *("start_records", "start_bytes", "archived", "rebase", "reindex", "epochs", "open", "aborted"),
    *("clean", "clean_end", "clean_bytes", "clean_history", "clean_token"),
)
CONTENTS = ("", "garbage", "nan", "inf", "-5", "1.5", "0x10", "1e300", "99999999999999999999")
KEYS = (STREAM, STATE, INDEX, MOVING, *CLEAN, SHARE)
LATER = EPOCH + 1
ERRORS = (
    *("KAFKA_STORAGE_ERROR ", "UNKNOWN_TOPIC_OR_PARTITION ", "OFFSET_OUT_OF_RANGE ", "WRONGTYPE "),
    "INVALID_RECORD_STATE ",
)
APPENDS = {"log/append_record", "log/append_batch"}
FORMATS = pytest.mark.parametrize("log_of", [Log, partial(Log, bits=DENSE), BatchLog])

SHARES = {f"share/{name}" for name in ("acknowledge", "acquire", "alter", "convert", "delete", "look")}
INDEXES = {f"index/{name}" for name in ("count", "find")}
NEED: dict[str, set[str]] = {
    "start_records": {"log/trim"},
    "archived": {"lake/mirror"},
    "rebase": {"index/rebase"},
    "clean": {"index/age", "index/count"},
    "clean_end": {"compaction/free", "log/trim"},
    "epochs": {"append", "log/renumber"},
}
"""Which scripts of a log in format `record` refuse to work if a field of the state is no number."""

TOO_LARGE = 2**53 + 2
WITHOUT_LOG = {"compaction/write", "compaction/give_up"}
MALFORMED_LOGS: list[dict[str, int]] = [
    *({name: TOO_LARGE} for name in ("next_offset", "size_bytes", "records", "entries", "largest")),
    *({"next_offset": 5, "start": 0, "first": 0} | {name: 6} for name in ("start", "first", "lake_start")),
    {"largest": 4, "interval": 5},
    {"moving": 2},
]

LogOf = Callable[[Any], Log]
Call = tuple[tuple[str, ...], list[Any]]


def two_records(client: Any, log_of: LogOf) -> Log:
    """Return a log in the middle of a pass of compaction, with a row of the index at its end."""
    client.flushall()
    log = log_of(client)
    log.append_all(log.batch("a"), log.batch("b"))  # at offsets without a gap, whatever the time is
    client.zadd(INDEX, {"2:200:5:5": log.next()})
    client.hset(STATE, "clean_token", "mine")
    log.change(lake_start=0)
    if isinstance(log, BatchLog):
        row = "return cmsgpack.pack({'m'}, {tonumber(ARGV[1]), tonumber(ARGV[1]), 1, 1, 2^52})"
        held = client.eval(row, 0, log.next() - 2)
        client.hset(SHARE, mapping={"h:g": f"ranges {log.next() - 2} {log.next() - 1} 1", "r:g": held})
    else:
        client.xgroup_create(STREAM, "g", log.id_of(log.next() - 3))
        client.xreadgroup("g", "m", {STREAM: ">"}, count=1)
        client.hset(SHARE, "h:g", f"redis {log.next() - 2} 1000")
    return log


def share_calls(log: Log) -> dict[str, list[Any]]:
    """Return what the scripts of share groups take besides the topic id."""
    end, bits, group = log.next(), -1 if isinstance(log, BatchLog) else log.bits, "g"
    read = [0, end, EPOCH, 3, "", 1, end - 1, end - 1]
    return {
        "acquire": [group, bits, "m", "", "", 5, "cut", 1000, 5, 10, *read],
        "acknowledge": [group, bits, "m", STREAM, 1000, 5, 10, "", end - 2, end - 2, 1],
        "alter": [group, bits, 0, "redis", 1000],
        "convert": [bits, group],
        "delete": [group, bits],
        "look": [group, bits],
    }


def calls(log: Log) -> dict[str, Call]:
    """Return keys and arguments with which each script of a log does something; not for appends."""
    end, is_dense = log.next(), isinstance(log, BatchLog)
    bits = -1 if is_dense else log.bits
    settle: dict[str, Call] = {
        "log/renumber": ((STREAM, STATE, MOVING, INDEX, SHARE), [TOPIC_ID, LATER, bits, 10, 1 << 20, STREAM])
    }
    if is_dense:
        settle = {"log/expel": ((STREAM, STATE), [TOPIC_ID, 10])}
    return settle | {
        "log/trim": ((STREAM, STATE, INDEX, *CLEAN, ABORTED), [TOPIC_ID, bits, end, -1, 100, 1 << 20]),
        "compaction/begin": ((STATE, INDEX, *CLEAN), [TOPIC_ID, "other", 0, end]),
        "compaction/write": ((STATE, CLEAN[0]), [TOPIC_ID, "mine", "behind", "1-1", 2, "value", "v"]),
        "compaction/switch": (
            (STATE, INDEX, *CLEAN, ABORTED),
            [TOPIC_ID, "mine", 0, end, 1, 10, 5, "", "tombstones", 0],
        ),
        "compaction/give_up": ((STATE, *CLEAN), [TOPIC_ID, "mine"]),
        "compaction/free": ((STREAM, STATE), [TOPIC_ID, bits, 100, 1 << 20]),
        "index/find": ((STATE, INDEX), [TOPIC_ID, 1, -1, 100, 10]),
        "index/count": ((STATE, INDEX, STREAM, *CLEAN), [TOPIC_ID, bits, -1, 100]),
        "index/age": ((STATE, STREAM, *CLEAN), [TOPIC_ID, bits, -1]),
        "index/fill": ((STATE, INDEX), [TOPIC_ID, "", "", 0, 0, end, "last", 0, 0, 5, 5, end, "2:200:5:5"]),
        "index/rebase": ((STATE, INDEX), [TOPIC_ID, 100, -1, -1]),
        **{
            f"share/{name}": ((STREAM, STATE, SHARE), [TOPIC_ID, *args])
            for name, args in share_calls(log).items()
        },
        "lake/mirror": ((STATE,), [TOPIC_ID, end, 0]),
        "lake/expire": ((STATE,), [TOPIC_ID, end]),
    }


def every_script(log: Log) -> dict[str, Callable[[], object]]:
    works: dict[str, Callable[[], object]] = {
        name: partial(run, log.client, name, *call) for name, call in calls(log).items()
    }
    return works | {"append": partial(log.append, "c", producer=5, leader_epoch=LATER)}


def refusals(client: Any, log_of: LogOf, damage: Callable[[], object]) -> set[str]:
    """Run every script on a log with the damage; return which refuse, as they should if they do."""
    refused: set[str] = set()
    wrong: list[str] = []
    log = two_records(client, log_of)
    saved = Saved(client)
    for name, work in every_script(log).items():
        saved.restore()
        damage()
        before = contents(client, KEYS)
        try:
            work()
        except redis.ResponseError as error:
            # redis-py takes some first words for a class of its own, and drops them.
            if not (str(error).startswith(ERRORS) or "wrong kind of value" in str(error)):
                wrong.append(f"{name}: {error}")
            if contents(client, KEYS) != before:
                wrong.append(f"{name} has written: {error}")
            refused.add(name)
    assert wrong == []
    return refused


@FORMATS
def test_every_script_of_a_log_does_its_work_on_one_that_is_whole(raw_redis: Any, log_of: LogOf) -> None:
    names = set(calls(two_records(raw_redis, log_of)))
    for name in names:
        keys, args = calls(two_records(raw_redis, log_of))[name]
        run(raw_redis, name, keys, args)
    folders = ("log/", "compaction/", "index/", "lake/", "share/")
    every = {script.name for script in scripts.all_scripts() if script.name.startswith(folders)}
    assert names == every - APPENDS - {"log/renumber" if log_of is BatchLog else "log/expel"}


@FORMATS
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_state_that_is_no_number(raw_redis: Any, log_of: LogOf, field: str) -> None:
    others = {"clean_end": "1"} if field == "clean" else {}
    for content in CONTENTS:
        state = others | {field: content}
        refused = refusals(raw_redis, log_of, partial(raw_redis.hset, STATE, mapping=state))
        if content == "garbage" and log_of is Log:
            assert refused == NEED.get(field, set())


@FORMATS
def test_a_malformed_log(raw_redis: Any, log_of: LogOf) -> None:
    log = two_records(raw_redis, log_of)
    whole, every = log.log, every_script(log).keys()
    packed = [b"", whole.pack()[:-1], whole.pack() + b"\0", b"\xff" * 77]
    packed += [whole._replace(**counters).pack() for counters in MALFORMED_LOGS]
    damages = [partial(raw_redis.hset, STATE, "log", damaged) for damaged in packed]
    for damage in (partial(raw_redis.hdel, STATE, "log"), *damages):
        assert refusals(raw_redis, log_of, damage) == every - WITHOUT_LOG


@FORMATS
def test_a_stream_that_is_missing(raw_redis: Any, log_of: LogOf) -> None:
    refused = refusals(raw_redis, log_of, partial(raw_redis.delete, STREAM))
    # A part of kind `redis` is a Redis group of the stream: with it the records are gone that could be acknowledged.
    assert refused == {"append", *(() if log_of is BatchLog else ("share/acknowledge",))}


@FORMATS
@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_type(raw_redis: Any, log_of: LogOf, key: str) -> None:
    def damage() -> None:
        raw_redis.delete(key)
        raw_redis.rpush(key, "of somebody else")

    refusals(raw_redis, log_of, damage)


@FORMATS
def test_a_row_of_the_index_that_is_none(raw_redis: Any, log_of: LogOf) -> None:
    refused = refusals(raw_redis, log_of, partial(raw_redis.zadd, INDEX, {"garbage": 1}))
    assert refused | {"index/count"} == {*INDEXES, "index/rebase", "log/trim"}


def delete(client: Any) -> None:
    assert run(client, "topic/clear", [STATE, STREAM, *SIDE_KEYS], [TOPIC_ID, 0, 0, STREAM]) == 0


@FORMATS
@pytest.mark.parametrize(
    "fence",
    [delete, lambda client: client.delete(STATE), lambda client: client.hset(STATE, "topic", "another")],
    ids=["being deleted", "deleted", "another"],
)
def test_no_script_touches_another_incarnation_of_a_log(
    raw_redis: Any, log_of: LogOf, fence: Callable[[Any], object]
) -> None:
    log = two_records(raw_redis, log_of)
    works = every_script(log)
    fence(raw_redis)
    for work in works.values():
        with refused(raw_redis, r"^UNKNOWN_TOPIC_OR_PARTITION "):
            work()
