"""What a topic asks of the records, to the millisecond."""

from __future__ import annotations

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, RecordsRefusedError
from korvet.log.append import WRONG_RECORDS_MAX, check_records, may_be_wrong
from korvet.protocol.records.batch import each_record, produced_batch
from korvet.topics import config as topic_config
from tests.support.batches import Record, batch

NOW = 1_700_000_000_000
LIMITS = {"message.timestamp.before.max.ms": "100", "message.timestamp.after.max.ms": "10"}


def check(configs: dict[str, str], *sent: Record) -> RecordsRefusedError | None:
    """Return why the records are refused."""
    passed = produced_batch(batch(*sent), 1 << 20)
    records, (_, walk) = each_record(passed.view, 0, 1 << 20), passed.as_stored(1 << 20)
    config = topic_config.effective(configs, Settings())
    refused: RecordsRefusedError | None = None
    try:
        check_records(records, config, NOW)
    except RecordsRefusedError as error:
        refused = error
    assert refused is None or may_be_wrong(walk, config, NOW)
    return refused


@pytest.mark.parametrize(
    ("timestamp", "taken"),
    [
        (NOW, True),
        (NOW + 10, True),
        (NOW + 11, False),
        (NOW - 100, True),
        (NOW - 101, False),
        (-1, True),
        (-2, False),
        (0, False),
        (-(2**63), False),
        (2**63 - 1, False),
    ],
)
def test_the_limits_themselves_are_allowed_and_no_time_at_all_is(timestamp: int, taken: bool) -> None:  # noqa: FBT001 - a parameter of the test
    refused = check(LIMITS, Record(timestamp=timestamp))
    assert (refused is None) == taken
    assert check(LIMITS | {"message.timestamp.type": "LogAppendTime"}, Record(timestamp=timestamp)) is None
    if refused is not None:
        assert refused.code is ErrorCode.INVALID_TIMESTAMP
        assert refused.records == [(0, f"the timestamp {timestamp} is not in {NOW - 100}..{NOW + 10}")]


KEYED, KEYLESS, TOMBSTONE = Record(b"v", b"k"), Record(b"v", None), Record(None, b"k")
LATE, BOTH = Record(b"v", b"k", NOW + 11), Record(b"v", None, NOW + 11)
AFTER, COMPACT = {"message.timestamp.after.max.ms": "10"}, {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("configs", "sent", "code", "wrong"),
    [
        ({}, [KEYLESS, Record(timestamp=-5)], None, []),
        (AFTER, [KEYED, LATE, Record(timestamp=0), LATE], ErrorCode.INVALID_TIMESTAMP, [1, 3]),
        (COMPACT, [KEYED, TOMBSTONE, Record(b"v", b"")], None, []),
        (COMPACT, [TOMBSTONE, KEYLESS, Record(None, None)], ErrorCode.INVALID_RECORD, [1, 2]),
        ({"cleanup.policy": "delete,compact"}, [KEYLESS], ErrorCode.INVALID_RECORD, [0]),
        # The time says the error of two kinds of wrong records; of one record its key is looked at first.
        (AFTER | COMPACT, [LATE, KEYLESS, KEYED], ErrorCode.INVALID_TIMESTAMP, [0, 1]),
        (AFTER | COMPACT, [KEYLESS, LATE], ErrorCode.INVALID_TIMESTAMP, [0, 1]),
        (AFTER | COMPACT, [BOTH], ErrorCode.INVALID_RECORD, [0]),
    ],
)
def test_a_batch_is_refused_for_all_of_its_wrong_records(
    configs: dict[str, str], sent: list[Record], code: ErrorCode | None, wrong: list[int]
) -> None:
    refused = check(configs, *sent)
    assert (refused and refused.code, [at for at, _ in refused.records] if refused else []) == (code, wrong)


def test_of_very_many_wrong_records_some_are_named() -> None:
    refused = check({"cleanup.policy": "compact"}, *[Record(key=None)] * (WRONG_RECORDS_MAX + 1))
    assert refused is not None
    assert [at for at, _ in refused.records] == list(range(WRONG_RECORDS_MAX))
    assert f"{WRONG_RECORDS_MAX + 1} of {WRONG_RECORDS_MAX + 1} records" in refused.message


def test_an_error_without_its_frames_still_names_its_records() -> None:
    refused = check({"cleanup.policy": "compact"}, Record(key=b"k"), Record(key=None))
    assert refused is not None
    bare = refused.without_frames()
    assert (bare.__traceback__, bare.__context__) == (None, None)
    assert [at for at, _ in bare.records] == [1]


@pytest.mark.parametrize(
    ("configs", "sent"),
    [
        ({}, KEYLESS),
        (LIMITS | {"message.timestamp.type": "LogAppendTime"}, LATE),
        (AFTER, Record(timestamp=NOW + 10)),
        (LIMITS, Record(timestamp=NOW - 100)),
        (COMPACT, KEYED),
    ],
)
def test_the_walk_clears_a_batch_that_has_no_wrong_record(configs: dict[str, str], sent: Record) -> None:
    _, walk = produced_batch(batch(sent), 1 << 20).as_stored(1 << 20)
    assert not may_be_wrong(walk, topic_config.effective(configs, Settings()), NOW)
