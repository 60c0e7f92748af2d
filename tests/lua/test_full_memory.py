"""The scripts where memory is full (maxmemory): what needs memory writes nothing, what gives it back goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from tests.lua.group.support import Group
from tests.lua.support import STREAM, BatchLog, Log, memory_left, unchanged

FORMATS = pytest.mark.parametrize("log_of", [Log, BatchLog])


STORE_MORE = {
    *(f"log/{name}" for name in ("append", "append_batch")),
    *("compaction/write", "partition/create"),
    *(f"topic/{name}" for name in ("claim", "create")),
    *(f"transaction/{name}" for name in ("add", "init")),
}
ONLY_REMOVE_OR_READ = {"group/look", "producer/expire"}


def test_every_script_runs_but_those_that_store_more() -> None:
    """By the flag of its head Redis lets a script write; one without a head may run commands that need no memory."""
    heads = {script.name: script.source.partition("\n")[0] for script in scripts.all_scripts()}
    refused = {name for name, head in heads.items() if not re.search("flags=(allow-oom|no-writes)", head)}
    assert refused == STORE_MORE | ONLY_REMOVE_OR_READ
    assert not {name for name in ONLY_REMOVE_OR_READ if heads[name].startswith("#!")}


@pytest.mark.parametrize(
    "of_batch",
    [
        {"producer": 7, "sequence": 1, "transaction": "t0"},
        {"producer": 8, "transaction": "t5"},
        {"producer": 7, "sequence": -1, "transaction": "a5"},
    ],
    ids=["appended", "a transaction opened", "a transaction ended"],
)
def test_nothing_is_written(log: Log, of_batch: dict[str, Any]) -> None:
    log.appended("a", producer=7, transaction="t5")
    with unchanged(log.client), memory_left(log.client, -1), pytest.raises(redis.OutOfMemoryError):
        log.append("b", **of_batch)


def test_an_append_during_which_memory_becomes_full_is_whole(raw_redis: Any) -> None:
    log = Log(raw_redis)
    values = ["v" * 200] * 10_000
    # How much the arguments weigh, before the script begins, is Redis' secret. In steps that are smaller than what the
    # script writes, the first limit under which it may begin is one that it passes on its way.
    for left_bytes in range(0, 32 << 20, 512 << 10):
        with memory_left(raw_redis, left_bytes):
            try:
                log.appended(*values)
            except redis.OutOfMemoryError:
                assert raw_redis.exists(STREAM) == 0
            else:
                break
    assert left_bytes > 0
    assert log.values() == values
    assert log.next() == log.offsets()[-1] + 1


def test_members_of_groups_go_on(raw_redis: Any) -> None:
    group = Group(raw_redis)
    generation = group.stable("a")
    with memory_left(raw_redis, -1):
        assert group.heartbeat("a", generation) == 1
        with pytest.raises(redis.ResponseError, match="MEMBER_ID_REQUIRED"):
            group.join(new="b", require_known_member_id=True)
        assert group.join("b")[0] == b"WAIT"
        with pytest.raises(redis.ResponseError, match="REBALANCE_IN_PROGRESS"):
            group.heartbeat("a", generation)
        generation = int(group.join("a")[2])
        assert group.sync("b", generation)[0] == b"WAIT"
        assert group.sync("a", generation, "a", "b")[0] == b"SYNCED"
        assert group.advance() > 0
        assert group.leave(("b", "")) == [b"NONE"]
    assert group.state() == "PreparingRebalance"
