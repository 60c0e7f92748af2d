"""korvet/lake/rewind.py: a lake that is ahead of a restored Redis gets the content of the Redis, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable, TableFeatures

from korvet.errors import ErrorCode, LakeError
from korvet.lake.compaction import compact
from korvet.lake.expiry import Expiry
from korvet.lake.reader import LakeReader
from korvet.lake.rewind import RewindRound, RewoundPartition, rewind
from korvet.lake.source import RetentionLimits
from korvet.lake.table import ArchiveTable, Lake
from korvet.lake.unreadable import KeptRange, kept_files
from korvet.lake.verify import verify
from tests.lake.archives import request
from tests.lake.both import TOPIC, Both, both
from tests.support import iceberg
from tests.support.archives import topics_in
from tests.support.batches import MALFORMED, values
from tests.support.log_bench import LAYOUTS
from tests.support.transactions import TransactionalProducer

Restore = Callable[[], None]


def copied(raw: Any) -> Restore:
    """Copy all of Redis; the returned function restores it, in place of the content at that time."""
    held = {key: raw.dump(key) for key in raw.keys()}  # noqa: SIM118 - a client is no dictionary

    def restore() -> None:
        raw.flushall()
        for key, data in held.items():
            raw.restore(key, 0, data)

    return restore


def rewound(topic: Both, *names: str, dry_run: bool = False) -> list[RewoundPartition]:
    done = rewind(topic.source, names, dry_run=dry_run)
    assert done.gone == []
    return done.rewound


def findings(topic: Both) -> list[str]:
    return [one.message for partition in verify(topic.stores, topic.topic) for one in partition.findings]


def refusal(topic: Both) -> str:
    """Return why an archiver that was started now does not archive."""
    [failure] = topic.topics.archiver().round(topic.topics.run).failures
    return failure.error


@pytest.fixture(params=LAYOUTS)
def topic(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic in any layout."""
    with both(redis_url, tmp_path / "lake", request.param) as made:
        yield made


@pytest.fixture
def dense(redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic of format batch, whose offsets are 0, 1, 2, ..."""
    with both(redis_url, tmp_path / "lake") as made:
        yield made


class Lost:
    """A topic whose table has records that Redis had and has no more; the last file of both has some of each."""

    def __init__(self, topic: Both, raw: Any) -> None:
        topic.archive_batches((1, 2), (3, 4))
        self.first = topic.append(5, 6)
        self.end = topic.bounds.high_watermark
        restore = copied(raw)
        self.lost = topic.append(7, 8, 9)
        topic.archive()
        self.archived = topic.table.next_offset(0) or 0
        topic.archive_batches((10, 11))
        self.next_offset = topic.table.next_offset(0) or 0
        self.before = topic.files()
        restore()
        self.outcome = RewoundPartition(
            topic=TOPIC, partition=0, first=self.end, end=self.next_offset, records=5, files=2
        )


def refuse(*_: object) -> None:
    raise LakeError("no access")


def check(topic: Both, *expected: int) -> None:
    """Archive and trim what there is, and hold that both tiers have the records of these times, each once."""
    topic.archive()
    topic.trim(topic.bounds.archived)
    assert [value for _, value in topic.scanned()] == [b"%d" % at for at in expected]
    assert findings(topic) == []
    assert rewound(topic) == []


def test_what_lies_past_the_end_of_the_log_leaves_the_table(topic: Both, raw_redis: Any) -> None:
    lost = Lost(topic, raw_redis)
    assert "Redis has lost records" in refusal(topic)
    assert rewound(topic) == [lost.outcome]
    table = topic.table
    assert (table.next_offset(0), table.next_offset(1)) == (lost.end, None)
    assert table.version == 5
    stayed, [cut] = topic.files()[:2], topic.files()[2:]
    assert stayed == lost.before[:2]
    assert (cut.first_offset, cut.rows) == (lost.first, 2)
    assert cut.last_offset < lost.end
    topic.append(12)
    check(topic, 1, 2, 3, 4, 5, 6, 12)


def test_a_table_that_is_not_ahead_stays_as_it_is(topic: Both, raw_redis: Any) -> None:
    topic.archive_batches((1, 2))
    restore = copied(raw_redis)
    topic.archive_batches((3,))
    topic.append(4)
    assert rewound(topic) == []
    assert topic.table.version == 2
    # Redis does not know the last commit, and has its records.
    restore()
    topic.append(3)
    if topic.partition.is_dense:
        assert rewound(topic) == []
        assert topic.table.version == 2


def test_a_dry_run_reports_and_changes_nothing(topic: Both, raw_redis: Any) -> None:
    lost = Lost(topic, raw_redis)
    held = sorted(Path(topic.lake.path).rglob("*"))
    assert rewound(topic, dry_run=True) == [lost.outcome]
    assert (topic.files(), sorted(Path(topic.lake.path).rglob("*"))) == (lost.before, held)
    assert rewound(topic, TOPIC) == [lost.outcome]


def test_a_crash_before_the_commit_leaves_the_table_as_it_was(
    topic: Both, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost(topic, raw_redis)
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "rewind", refuse)
        [failed] = rewound(topic)
    assert (failed.partition, failed.error) == (-1, "no access")
    assert topic.files() == lost.before
    assert len(topic.topics.files(topic.topic)) == len(lost.before) + 1
    assert rewound(topic) == [lost.outcome]
    check(topic, 1, 2, 3, 4, 5, 6)


def test_another_commit_in_between_is_kept(
    topic: Both, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost(topic, raw_redis)
    commit, tries = ArchiveTable.rewind, []

    def late(table: ArchiveTable, *of: Any) -> None:
        tries.append(table.version)
        if len(tries) == 1:
            topic.worker.append(TOPIC, b"other", partition=1)
            topic.round()
        commit(table, *of)

    monkeypatch.setattr(ArchiveTable, "rewind", late)
    assert rewound(topic) == [lost.outcome]
    assert len(tries) == 2
    # What the refused commit had written is deleted.
    assert topic.topics.files(topic.topic) == topic.topics.files_named(topic.topic) | {
        file.path for file in lost.before[2:]
    }
    assert topic.table.next_offset(1) is not None
    check(topic, 1, 2, 3, 4, 5, 6)


def test_records_that_others_replaced_leave_the_table(topic: Both, raw_redis: Any) -> None:
    Lost(topic, raw_redis)
    # Brokers were started too early.
    topic.append(12, 13)
    topic.append(14, 15, 16, 17)
    if topic.partition.is_dense:
        assert "Redis holds another record" in refusal(topic)
    [done] = rewound(topic)
    assert done.records == 5
    check(topic, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 16, 17)


def test_a_transaction_that_is_open_again_is_archived_as_it_ends_then(topic: Both, raw_redis: Any) -> None:
    topic.archive_batches((1, 2))
    producer = TransactionalProducer(topic.worker, TOPIC)
    begun = producer.write(b"3", b"4")
    topic.append(5)
    restore = copied(raw_redis)
    producer.commit()
    topic.archive()
    restore()
    topic.append(6)
    assert f"a transaction is open from {topic.bounds.stable_offset} on" in refusal(topic)
    [done] = rewound(topic)
    assert (done.first, done.records) == (topic.bounds.stable_offset, 3)
    assert done.first <= begun
    producer.abort()
    check(topic, 1, 2, 5, 6)


def test_the_offset_below_which_something_was_left_out_goes_back_too(dense: Both, raw_redis: Any) -> None:
    dense.archive_batches((1, 2))
    restore = copied(raw_redis)
    producer = TransactionalProducer(dense.worker, TOPIC)
    producer.write(b"3")
    producer.abort()
    dense.append(4)
    dense.archive()
    assert dense.table.left_out(0) == 5
    restore()
    assert [done.records for done in rewound(dense)] == [1]
    assert dense.table.left_out(0) == 2
    check(dense, 1, 2)


def test_files_that_were_merged_since_are_cut(topic: Both, raw_redis: Any) -> None:
    lost = Lost(topic, raw_redis)
    assert all(merge.done for merge in compact(topic.lake, topic.topic.of))
    assert len(topic.files()) == 1
    assert rewound(topic) == [msgspec.structs.replace(lost.outcome, files=1)]
    assert [file.rows for file in topic.files()] == [6]
    check(topic, 1, 2, 3, 4, 5, 6)


def test_files_of_dates_stay_in_their_directories(redis_url: str, raw_redis: Any, tmp_path: Path) -> None:
    day = 86_400_000
    with both(redis_url, tmp_path / "lake", "dense", {"lake.partitioning": "date"}) as made:
        made.append(1, day, 2)
        restore = copied(raw_redis)
        made.append(day + 1, 3, day + 2)
        made.archive()
        restore()
        assert [(done.records, done.files) for done in rewound(made)] == [(3, 2)]
        assert [(file.date, file.rows) for file in made.files()] == [("1970-01-01", 2), ("1970-01-02", 1)]
        check(made, 1, day, 2)


def test_an_iceberg_table_follows(dense: Both, raw_redis: Any) -> None:
    iceberg.beside(dense.topics)
    dense.source, dense.archiver = dense.topics.source, dense.topics.archiver()
    Lost(dense, raw_redis)
    assert len(rewound(dense)) == 1
    assert iceberg.check(dense.lake, dense.topic.of).scan().count() == 6


def test_batches_that_do_not_decode_are_kept_only_below(
    dense: Both, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = MALFORMED["zeros"]
    dense.append(1)
    [(first, end)] = dense.topics.put(dense.partition, bad)
    restore = copied(raw_redis)
    dense.topics.put(dense.partition, bad)
    dense.archive()
    dense.append(2)
    dense.topics.put(dense.partition, bad)
    dense.archive()
    files = dense.lake.filesystem(dense.topic.of)
    [together, _] = kept_files(files)
    restore()
    dense.append(3)
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "rewind", refuse)
        assert [failed.error for failed in rewound(dense)] == ["no access"]
    [done] = rewound(dense)
    assert (done.first, done.records) == (end, 1)
    [kept] = kept_files(files)
    assert (kept.first_offset, kept.end_offset) == (first, end)
    assert kept.size_bytes == together.size_bytes // 2
    dense.archive()
    [verified, _] = verify(dense.stores, dense.topic)
    assert (verified.findings, verified.known_holes) == ((), (KeptRange(first, end),))


def expire(topic: Both, now_ms: int) -> None:
    Expiry(topic.source).expire(topic.stores, topic.topic, RetentionLimits(ms=0), now_ms)


def test_records_that_expired_in_the_lake_since_are_out_of_range(dense: Both, raw_redis: Any) -> None:
    dense.archive_batches((1, 2), (3, 4))
    dense.trim(4)
    restore = copied(raw_redis)
    expire(dense, 2)
    dense.archive_batches((5,))
    restore()
    assert findings(dense)[1:] == ["offsets 0 to 1 are missing"]
    [done] = rewound(dense)
    assert (done.start, done.first, done.records) == (2, 4, 1)
    [below] = dense.worker.fetch(dense.worker.wanted(TOPIC, offset=1))
    assert below.error == ErrorCode.OFFSET_OUT_OF_RANGE
    dense.append(6)
    check(dense, 3, 4, 6)


def test_a_lake_that_is_older_than_redis_is_refused(dense: Both, raw_redis: Any, tmp_path: Path) -> None:
    dense.archive_batches((1, 2))
    shutil.copytree(dense.lake.path, tmp_path / "older")
    dense.archive_batches((3,))
    dense.source = msgspec.structs.replace(dense.source, lake=Lake(str(tmp_path / "older")))
    [failed] = rewound(dense)
    assert failed.partition == 0
    assert (
        failed.error == "archived up to 3 as Redis knows, but this lake holds it up to 2: is it another one?"
    )
    shutil.rmtree(tmp_path / "older")
    [failed] = rewound(dense)
    assert failed.error == "archived up to 3 as Redis knows, but this lake holds nothing: is it another one?"


def test_a_log_of_another_past_is_refused(dense: Both, raw_redis: Any, tmp_path: Path) -> None:
    dense.archive_batches((1, 2))
    restore = copied(raw_redis)
    another = tmp_path / "another"
    shutil.copytree(dense.lake.path, another)
    dense.archive_batches((3, 4), (5,))
    restore()
    dense.append(6, 7)
    with topics_in(dense.source.redis_url, another) as elsewhere:
        assert elsewhere.archiver().round(elsewhere.run).failures == []
    [failed] = rewound(dense)
    assert failed.error is not None
    assert failed.error.startswith(
        "this Redis has another past than the lake, which has its log up to 4: offset 2 has "
    )
    assert dense.table.next_offset(0) == 5


def test_a_table_whose_files_a_user_has_changed_is_refused(dense: Both, raw_redis: Any) -> None:
    lost = Lost(dense, raw_redis)
    DeltaTable(dense.lake.uri(dense.topic.of)).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    [failed] = rewound(dense)
    assert "its files cannot be rewritten" in str(failed.error)
    assert dense.files() == lost.before


def test_tables_without_a_topic_are_named_and_stay(dense: Both, raw_redis: Any) -> None:
    restore = copied(raw_redis)
    dense.archive_batches((1, 2))
    of = dense.topic.of
    raw_redis.flushall()
    with pytest.raises(ValueError, match="there is no topic at all"):
        rewind(dense.source, (), dry_run=False)
    with pytest.raises(ValueError, match="there is no topic orders"):
        rewind(dense.source, (TOPIC,), dry_run=False)
    dense.topics.make("other", "batch")
    assert rewind(dense.source, (), dry_run=False) == RewindRound([], [of])
    restore()
    assert [done.records for done in rewound(dense)] == [2]


def test_a_reader_that_knows_the_table_from_before_serves_what_came_after(
    topic: Both, raw_redis: Any
) -> None:
    reader, of = LakeReader(topic.lake), topic.topic.of
    lost = Lost(topic, raw_redis)
    first = topic.bounds.local_start
    reader.answer(request(first, lost.next_offset, of=of))
    rewound(topic)
    topic.append(12)
    topic.archive()
    result = reader.answer(request(first, topic.bounds.archived, of=of))
    assert values(result.data) == [b"1", b"2", b"3", b"4", b"5", b"6", b"12"]


def test_a_consumer_before_what_expired_gets_the_next_record(topic: Both, raw_redis: Any) -> None:
    first = topic.archive_batches((1, 2), (3, 4))
    topic.trim(topic.bounds.archived)
    restore = copied(raw_redis)
    expire(topic, 2)
    restore()
    log = topic.bounds
    place = request(log.log_start, log.archived, of=topic.topic.of)
    result = LakeReader(topic.lake).answer(place)
    assert values(result.data) == [b"3", b"4"]
    assert first[1] < result.next_offset <= log.archived
