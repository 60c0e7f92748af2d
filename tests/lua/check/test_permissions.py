"""lua/check/permissions.lua against a real server: nothing is left, and what a user may not do is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from korvet.topics.entry_ids import DENSE
from tests.lua.support import BatchLog, Log, run, unchanged

PROBE, SIDE = "korvet:probe", "{korvet:probe}:side"
COMMAND = re.compile(r"(?:\b(?:p?call|add)\(|^  \{)'([A-Z]+)'", re.MULTILINE)


def probe(client: Any) -> list[str]:
    return [text.decode() for text in run(client, "check/permissions", (PROBE, SIDE), [PROBE])]


def allow(admin: Any, *rules: str) -> None:
    admin.execute_command("ACL", "SETUSER", "u", *rules)


@pytest.fixture
def user(redis_url: str, raw_redis: Any) -> Iterator[Any]:
    """Give a client of a user who may do everything, until a test takes something from him."""
    allow(raw_redis, "reset", "on", ">p", "~*", "&*", "+@all")
    with redis.Redis.from_url(redis_url.replace("://", "://u:p@", 1)) as client:
        yield client
    raw_redis.acl_deluser("u")


def test_who_may_do_everything_is_refused_nothing_and_nothing_is_left(raw_redis: Any) -> None:
    assert probe(raw_redis) == []
    assert raw_redis.keys() == []


def test_what_others_left_behind_does_not_matter(raw_redis: Any) -> None:
    raw_redis.set(PROBE, "x")
    raw_redis.sadd(SIDE, "x")
    assert probe(raw_redis) == []


def test_every_command_of_every_script_is_tried() -> None:
    used = {name for script in scripts.all_scripts() for name in COMMAND.findall(script.source)}
    tried = set(COMMAND.findall(scripts.get("check/permissions").source))
    assert {"XADD", "SPUBLISH", "HMGET", "INCR"} <= used
    assert used <= tried


@pytest.mark.parametrize("command", ["xadd", "hset", "spublish", "xinfo|stream", "zpopmin", "unlink"])
def test_a_command_that_the_user_may_not_run_is_named(raw_redis: Any, user: Any, command: str) -> None:
    allow(raw_redis, f"-{command}")
    assert command.partition("|")[0].upper() in {text.split(":")[0] for text in probe(user)}
    allow(raw_redis, f"+{command}")
    assert probe(user) == []


def test_a_channel_that_the_user_may_not_use_is_named(raw_redis: Any, user: Any) -> None:
    allow(raw_redis, "resetchannels")
    assert [text.split(":")[0] for text in probe(user)] == ["SPUBLISH"]


@pytest.mark.parametrize("log_of", [Log, partial(Log, bits=DENSE), BatchLog])
def test_an_append_writes_nothing_without_the_right_to_add_and_all_without_that_to_announce(
    raw_redis: Any, user: Any, log_of: Any
) -> None:
    log = log_of(user)
    allow(raw_redis, "-xadd")
    with unchanged(raw_redis), pytest.raises(redis.ResponseError, match=r"(?i)user"):
        log.append("a", producer=7)
    allow(raw_redis, "+xadd", "-spublish")
    with pytest.raises(redis.ResponseError, match=r"(?i)user"):
        log.append("a", producer=7)
    allow(raw_redis, "+spublish")
    assert log.append("a", producer=7).outcome == b"DUPLICATE"
    assert (log.values(), log.next()) == (["a"], log.offsets()[-1] + 1)
