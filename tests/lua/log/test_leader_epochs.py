"""lua/shared/leader_epoch.lua in every script that moves a log's end: where epochs begin, and who is refused."""

from __future__ import annotations

from typing import Any

from tests.lua.support import EPOCH, STATE, Log, refused

LATER = 10  # as a text it comes before EPOCH


def test_the_first_record_of_an_epoch_begins_it_at_the_end_that_the_log_had(log: Log) -> None:
    log.appended("a", "b")
    assert log.state()["epochs"] == f"{EPOCH}@0"
    log.appended("c")
    end = log.next()
    assert log.state()["epochs"] == f"{EPOCH}@0"
    base = log.appended("d", leader_epoch=LATER)
    assert base >= end
    assert log.state()["epochs"] == f"{LATER}@{end} {EPOCH}@0"
    log.appended("e", leader_epoch=LATER)
    assert log.state()["epochs"] == f"{LATER}@{end} {EPOCH}@0"


def test_a_worker_of_an_earlier_epoch_writes_nothing(log: Log) -> None:
    log.appended("a", leader_epoch=LATER)
    with refused(log.client, f"NOT_LEADER_OR_FOLLOWER .* has leader epoch {LATER}, not {EPOCH}"):
        log.append("b")
    # Not even a batch that is there already is confirmed by a worker that is late.
    log.appended("c", producer=5, leader_epoch=LATER)
    with refused(log.client, "NOT_LEADER_OR_FOLLOWER"):
        log.append("c", producer=5, sequence=1)


def test_an_epoch_without_a_record_leaves_no_entry(log: Log) -> None:
    log.appended("a")
    end = log.next()
    log.client.hset(STATE, "epochs", f"{EPOCH + 1}@{end} {EPOCH}@0")
    log.change(epoch=EPOCH + 1)
    log.appended("b", leader_epoch=LATER)
    assert log.state()["epochs"] == f"{LATER}@{end} {EPOCH}@0"


def test_epochs_below_the_start_of_the_log_are_forgotten(log: Log) -> None:
    ends = []
    for epoch in range(1, 6):
        log.appended("a", leader_epoch=epoch)
        ends.append(log.next())
    log.change(start=ends[2])
    log.appended("b", leader_epoch=6)
    assert log.state()["epochs"] == f"6@{ends[4]} 5@{ends[3]} 4@{ends[2]}"
    log.change(lake_start=0)
    log.client.hset(STATE, "epochs", f"6@{ends[4]} 5@{ends[3]} 4@{ends[2]} 3@{ends[1]}")
    log.appended("c", leader_epoch=7)
    assert log.state()["epochs"].endswith(f"3@{ends[1]}")


def test_a_hundred_epochs_are_kept(log: Log) -> None:
    for epoch in range(1, 121):
        log.appended("a", leader_epoch=epoch)
    kept = [int(item.split("@")[0]) for item in log.state()["epochs"].split()]
    assert kept == list(range(120, 20, -1))


def test_external_entries_belong_to_the_epoch_in_which_they_are_taken_in(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("a")
    end = log.next()
    log.external("*", "external")
    log.appended("b", leader_epoch=LATER)
    assert log.state()["epochs"] == f"{LATER}@{end} {EPOCH}@0"
    end = log.next()
    log.external("*", "external")
    with refused(raw_redis, "NOT_LEADER_OR_FOLLOWER"):
        log.renumber()
    _, more, high_watermark = log.renumber(leader_epoch=LATER + 1)
    assert (more, int(high_watermark) > end) == (0, True)
    assert log.state()["epochs"].startswith(f"{LATER + 1}@{end} {LATER}@")


def test_a_step_that_takes_nothing_in_begins_no_epoch(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("a")
    log.renumber(leader_epoch=LATER)
    assert log.state()["epochs"] == f"{EPOCH}@0"
