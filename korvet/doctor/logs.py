"""The states of logs in Redis, unpacked: what `korvet topics state` prints, and what doctor finds malformed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, cast

import msgspec
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError

from korvet.log.packed import LOG_FIELD, PackedLog, ProducerRow
from korvet.redis.blocking import Masters, SlotRange, one_line
from korvet.redis.keys import Keys
from korvet.server.finding import Finding, error, ok
from korvet.topics.types import TopicRow

_AT_ONCE, _FIELDS_PER_STEP = 200, 100
"""Partitions that are read together, and fields of each: a step holds up Redis for milliseconds."""

_NAMED_MAX, _SLOTS = 3, 16_384
_ADVICE = {
    "state": "restore the key from a backup of Redis; if there is none, save the entries (COPY) and delete the topic",
    "stream": "restore the key from a backup of Redis; if there is none, delete the partition's records up to its end "
    "(kafka-delete-records): that creates the stream again",
    "producers": "remove the field (HDEL): the producer starts over, and its next batch is accepted",
}


class LogProblem(NamedTuple):
    """What is wrong with a key: `kind` is one of _ADVICE."""

    kind: str
    text: str


class StoredLog(msgspec.Struct, kw_only=True):
    """The state of a partition as it is stored, and how many entries its stream has; None for what cannot be read.

    `fields` are those of the state that are texts.
    """

    topic: str
    partition: int
    state: str
    stream: str
    entries: int | None = None
    log: PackedLog | None = None
    fields: dict[str, str] = {}
    producers: dict[int, ProducerRow] = {}
    problems: list[LogProblem] = []

    def note(self, kind: str, text: str) -> None:
        self.problems.append(LogProblem(kind, text))


def read_rows(client: redis.Redis, keys: Keys) -> dict[str, TopicRow]:
    """Return the topics that clients find, by name."""
    texts = cast("dict[bytes, bytes]", client.hgetall(keys.topics))
    rows: dict[str, TopicRow] = {}
    for name, text in sorted(texts.items()):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            row = msgspec.json.decode(text, type=TopicRow)
            if row.state == "live":
                rows[name.decode()] = msgspec.structs.replace(row, name=name.decode())
    return rows


def read_logs(
    masters: Masters, keys: Keys, rows: Iterable[TopicRow], answering: AbstractSet[str] | None = None
) -> Iterator[StoredLog]:
    """Yield the log of each partition of the topics, of those on the masters `answering` (all by default).

    Raises redis.RedisError if a master cannot be reached.
    """
    by_master: dict[str, list[tuple[StoredLog, str]]] = {}
    ranges = masters.slots() if masters.is_cluster else [SlotRange(0, _SLOTS - 1, "")]
    for row in rows:
        for index in range(row.partitions):
            partition = (row.name, index, row.tag(index))
            log = StoredLog(
                topic=row.name, partition=index, state=keys.state(*partition), stream=keys.stream(*partition)
            )
            slot = key_slot(log.state.encode())
            for first, last, master in ranges:
                if first <= slot <= last:
                    by_master.setdefault(master, []).append((log, row.id))
    clients = masters.all()
    for name in by_master.keys() & (clients.keys() if answering is None else clients.keys() & answering):
        logs = by_master[name]
        for first in range(0, len(logs), _AT_ONCE):
            page = logs[first : first + _AT_ONCE]
            _read(clients[name], page)
            yield from (log for log, _ in page)


def _read(client: redis.Redis, logs: Sequence[tuple[StoredLog, str]]) -> None:
    """Fill logs, each with its topic's id, from what one server has."""
    pipeline = client.pipeline(transaction=False)
    for log, _ in logs:
        pipeline.exists(log.stream)
        pipeline.xlen(log.stream)
    replies = pipeline.execute(raise_on_error=False)
    for (log, _), exists, entries in zip(logs, replies[::2], replies[1::2], strict=True):
        if isinstance(entries, int) and exists:
            log.entries = entries
        elif not _is_elsewhere(entries):
            said = "is no stream" if exists else "is missing, with all its entries"
            log.note("stream", f"{log.stream} {said}")
    states = _read_states(client, [log.state for log, _ in logs])
    for log, topic_id in logs:
        fields = states[log.state]
        if isinstance(fields, dict):
            _unpack(log, topic_id, fields)
        elif not _is_elsewhere(fields):
            log.note("state", f"{log.state}: {one_line(fields)}")


def _is_elsewhere(reply: object) -> bool:
    """Return whether a key has moved to another node of the cluster since its slot was looked up."""
    return isinstance(reply, AskError | MovedError)


def _read_states(
    client: redis.Redis, states: Iterable[str]
) -> dict[str, dict[bytes, bytes] | redis.RedisError]:
    """Return the fields of hashes, in steps that hold up Redis for little; an error for what is no hash."""
    result: dict[str, dict[bytes, bytes]] = {state: {} for state in states}
    failed: dict[str, redis.RedisError] = {}
    cursors = dict.fromkeys(result, 0)
    while cursors:
        pipeline = client.pipeline(transaction=False)
        for state, cursor in cursors.items():
            pipeline.hscan(state, cursor, count=_FIELDS_PER_STEP)
        for state, reply in zip(list(cursors), pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(reply, redis.RedisError):
                failed[state], cursors[state] = reply, 0
            else:
                cursors[state], fields = reply
                result[state].update(fields)
            if cursors[state] == 0:
                del cursors[state]
    return result | failed


def _unpack(log: StoredLog, topic_id: str, fields: Mapping[bytes, bytes]) -> None:
    if not fields:
        log.note("state", f"{log.state} is missing")
        return
    for name, value in sorted(fields.items()):
        if name == LOG_FIELD.encode():
            continue
        if not name.isdigit():
            log.fields[name.decode(errors="replace")] = value.decode(errors="backslashreplace")
            continue
        try:
            log.producers[int(name)] = ProducerRow.unpack(value)
        except ValueError:
            log.note("producers", f"{log.state}: the field {int(name)}, a producer, is malformed")
    try:
        log.log = PackedLog.unpack(fields.get(LOG_FIELD.encode()))
    except ValueError as problem:
        log.note("state", f"{log.state}: {problem}")
    if log.fields.get("topic") != topic_id:
        log.note("state", f"{log.state}: the field topic is not {topic_id}, the topic's id")


def examine(
    masters: Masters, keys: Keys, rows: Iterable[TopicRow], answering: AbstractSet[str]
) -> Iterator[Finding]:
    """Yield what is malformed in the logs of topics, key by key: appends and reads are refused there."""
    problems: dict[str, list[str]] = {}
    count = 0
    for log in read_logs(masters, keys, rows, answering):
        count += 1
        for kind, text in log.problems:
            problems.setdefault(kind, []).append(text)
    for kind, texts in problems.items():
        more = f"; and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
        yield error(kind, "; ".join(texts[:_NAMED_MAX]) + more, _ADVICE[kind])
    if not problems:
        yield ok("logs", f"{count} partitions, all well-formed")


def as_object(log: StoredLog) -> dict[str, Any]:
    return {
        "topic": log.topic,
        "partition": log.partition,
        "state": log.state,
        "stream": log.stream,
        "entries": log.entries,
        "log": log.log._asdict() if log.log else None,
        "fields": log.fields,
        "producers": [
            {"id": producer_id, **row._asdict(), "batches": [batch._asdict() for batch in row.batches]}
            for producer_id, row in sorted(log.producers.items())
        ],
        "problems": [problem.text for problem in log.problems],
    }
