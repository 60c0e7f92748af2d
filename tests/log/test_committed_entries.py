"""deploy/redis/committed.lua (docs/transactions.md): it reads what read_committed consumers see of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.log.trim import Trim, Trimmed, TrimStore
from tests.log.test_compaction_transactions import ONE, OTHER, TransactionalLog
from tests.support.domain import Domain

SCRIPT = (Path(__file__).parents[2] / "deploy/redis/committed.lua").read_text()


@pytest.fixture
def log(here: Domain, raw_redis: Any) -> TransactionalLog:
    return TransactionalLog(here, raw_redis, "record")


def committed(log: TransactionalLog, begin: str = "-", count: int = 100) -> tuple[str, list[bytes]]:
    """Return where to go on, and the values of the entries."""
    keys = (log.partition.stream, log.partition.state, log.partition.aborted)
    last, entries = log.raw.eval(SCRIPT, 3, *keys, begin, count)
    return last.decode(), [dict(zip(item[::2], item[1::2], strict=True))[b"value"] for _, item in entries]


def test_only_committed_entries_are_returned(log: TransactionalLog) -> None:
    log.append((b"k", b"plain"))
    log.write(ONE, (b"k", b"aborted"))
    log.write(OTHER, (b"k", b"committed"))
    log.end_transaction(ONE, commit=False)
    log.end_transaction(OTHER, commit=True)
    log.external(value="external")
    assert committed(log)[1] == [b"plain", b"committed", b"external"]


def test_nothing_is_returned_from_the_first_open_transaction_on(log: TransactionalLog) -> None:
    log.append((b"k", b"before"))
    log.write(ONE, (b"k", b"open"))
    log.append((b"k", b"after"))
    last, values = committed(log)
    assert values == [b"before"]
    assert committed(log, f"({last}") == ("", [])
    log.end_transaction(ONE, commit=True)
    assert committed(log, f"({last}")[1] == [b"open", b"after"]


def test_reading_in_pieces_returns_each_entry_once(log: TransactionalLog) -> None:
    for number in range(5):
        log.append((b"k", b"plain-%d" % number))
        log.write(ONE + number, (b"k", b"of-%d" % number))
        log.end_transaction(ONE + number, commit=number % 2 == 0)
    values, begin = [], "-"
    while True:
        last, result = committed(log, begin, 2)
        if not last:
            break
        values += result
        begin = f"({last}"
    expected = []
    for number in range(5):
        expected += [b"plain-%d" % number, *([b"of-%d" % number] if number % 2 == 0 else [])]
    assert values == expected


def test_what_is_below_the_start_of_the_log_is_not_returned(log: TransactionalLog) -> None:
    log.write(ONE, (b"k", b"aborted"))
    log.end_transaction(ONE, commit=False)
    log.append((b"k", b"last"))
    [trimmed] = TrimStore(log.here.redis).trim([Trim(log.partition, log.model[-1].offset)])
    assert isinstance(trimmed, Trimmed)
    assert log.raw.zcard(log.partition.aborted) == 0
    assert log.raw.xlen(log.partition.stream) == 3, "entries are freed by whole nodes"
    assert committed(log)[1] == [b"last"]
