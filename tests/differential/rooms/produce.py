"""Produce: what a batch may be, what it may not be, and idempotent producers."""

from __future__ import annotations

import time
from typing import Any

from tests.differential.session import Session
from tests.support.batches import CODECS, MALFORMED, Record, batch, compress, forged, old_message, raw

NOW = int(time.time() * 1000)
_RECORDS = (
    *(Record(b"v", b"k", NOW), Record(b"w", None, NOW), Record(b"", b"", NOW), Record(None, b"n", NOW)),
    Record(b"x", b"h", NOW, [("a", b"1"), ("a", None), ("", b"")]),
)
GOOD = batch(*_RECORDS)
ONE = batch(Record(b"v", b"k", NOW))


def _timed(timestamp: int) -> bytes:
    return forged(ONE, base_timestamp=timestamp, max_timestamp=timestamp)


FORGED: dict[str, dict[str, int]] = {
    **{f"magic {magic}": {"magic": magic} for magic in (0, 1, 3)},
    **{f"codec {codec}": {"attributes": codec} for codec in (5, 7)},
    **{f"attributes {bits:#x}": {"attributes": bits} for bits in (8, 16, 32, 48, 64, 256)},
    **{f"count {count}": {"record_count": count} for count in (0, 4, 6, -1)},
    **{f"last offset delta {delta}": {"last_offset_delta": delta} for delta in (-1, 3, 9)},
    **{f"length {length}": {"batch_length": length} for length in (-1, 20, 5000)},
    **{f"max timestamp {ms:+}": {"max_timestamp": NOW + ms} for ms in (-(10**6), 10**6)},
    **{f"timestamp {ms}": {"base_timestamp": ms, "max_timestamp": ms} for ms in (-1, -5, NOW + 10**10)},
    "wrong CRC": {"crc": 1},
    "base offset 77": {"base_offset": 77},
    "leader epoch 9": {"partition_leader_epoch": 9},
    "sequence without a producer": {"base_sequence": 3},
    "producer -2": {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0},
    "producer without an epoch": {"producer_id": 4444, "base_sequence": 0},
    "producer without a sequence": {"producer_id": 4545, "producer_epoch": 0},
    "unknown producer": {"producer_id": 4242, "producer_epoch": 0, "base_sequence": 0},
    "unknown producer, sequence 5": {"producer_id": 4343, "producer_epoch": 0, "base_sequence": 5},
    "producer epoch -5": {"producer_id": 4646, "producer_epoch": -5, "base_sequence": 0},
}
BATCHES: dict[str, bytes] = {
    "good": GOOD,
    **{f"codec {codec}": batch(*_RECORDS, codec=codec) for codec in CODECS[1:]},
    **{f"forged {name}": forged(GOOD, **fields) for name, fields in FORGED.items()},
    **{f"malformed {name}": data for name, data in MALFORMED.items()},
    **{f"message of magic {magic}": old_message(b"v", magic) for magic in (0, 1)},
    "no record": raw(b"", count=0, base_timestamp=NOW, max_timestamp=NOW),
    "empty": b"",
    "two batches": GOOD * 2,
    "bytes after it": GOOD + b"xx",
    "cut": GOOD[:-3],
    "codec 1, empty": raw(compress(1, b""), count=0, codec=1),
}
_PAST, _FUTURE = _timed(NOW - 10**7), _timed(NOW + 10**7)
CONFIGURED: dict[str, tuple[dict[str, str], tuple[bytes, ...]]] = {
    "compacted": ({"cleanup.policy": "compact"}, (ONE, batch(Record(b"v", None, NOW)), GOOD)),
    "log-append": ({"message.timestamp.type": "LogAppendTime"}, (GOOD, _PAST)),
    "small": ({"max.message.bytes": "200"}, (ONE, batch(Record(b"v" * 300, b"k", NOW)), GOOD * 3)),
    "timed": (
        {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
        (_PAST, _FUTURE, _timed(-1)),
    ),
    "gzip": ({"compression.type": "gzip"}, (GOOD, batch(*_RECORDS, codec=4))),
}
HIDDEN = ("BaseOffset", "LogStartOffset", "CurrentLeaderEpoch")


def body(session: Session, topic: str, data: bytes | None, **given: Any) -> dict[str, Any]:
    """Return a request with one partition of one topic."""
    partition = {"Index": given.pop("Index", 0), "Records": data}
    topics = [{"Name": topic, "TopicId": session.id(topic), "PartitionData": [partition]}]
    return {"TransactionalId": None, "Acks": -1, "TimeoutMs": 5000, "TopicData": topics, **given}


def write(
    session: Session, topic: str, data: bytes, label: str | None = None, version: int = 9, **given: Any
) -> int:
    """Produce to partition 0; returns the offset of the first record."""
    answer = session.ask("Produce", version, label, body(session, topic, data, **given))
    partitions = [row for part in answer.get("Responses", ()) for row in part["PartitionResponses"]]
    return int(partitions[0]["BaseOffset"]) if partitions else -1


def batches(session: Session) -> None:
    topic = session.topic("batches")
    for name, (configs, _) in CONFIGURED.items():
        session.topic(f"batches-{name}", configs=configs)
    for version in session.versions["Produce"]:
        for label, data in BATCHES.items():
            session.ask("Produce", version, label, body(session, topic, data), hide=HIDDEN)
        for name, (_, given) in CONFIGURED.items():
            for number, data in enumerate(given):
                request = body(session, f"batches-{name}", data)
                session.ask("Produce", version, f"{name} {number}", request, hide=HIDDEN)


def requests(session: Session) -> None:
    topic = session.topic("produced")
    good = body(session, topic, GOOD)
    index = {"Index": 0, "Records": GOOD}
    row = good["TopicData"][0]
    fields = {
        "Acks": (1, 2, -2),
        "TransactionalId": ("", "not-begun"),
        "TimeoutMs": (0, -1),
        "TopicData.Name": ("unknown", "a/b", "", "x" * 250),
        "TopicData.TopicId": (session.id("unknown"), session.id("")),
        "TopicData.PartitionData.Index": (1, -1, 2**31 - 1),
        "TopicData.PartitionData": ([], [index, index], [index, {**index, "Index": 5}]),
        "TopicData": ([], [row, row], [row, {**row, "Name": "unknown", "TopicId": session.id("unknown")}]),
    }
    for version in session.versions["Produce"]:
        session.vary("Produce", version, good, fields, hide=HIDDEN)


def no_records(session: Session) -> None:
    topic = session.topic("no-records")
    for version in (9, 13):  # Kafka never answers
        session.ask("Produce", version, "null", body(session, topic, None))


def unacknowledged(session: Session) -> None:
    """Acks of 0 have no answer: an error closes the connection, so the next request has none."""
    topic = session.topic("unacknowledged")
    for label, name, data in (
        ("good", topic, GOOD),
        ("unknown topic", "unknown", GOOD),
        ("wrong CRC", topic, forged(GOOD, crc=3)),
        ("too large", topic, batch(Record(b"v" * 1_100_000, b"k", NOW))),
    ):
        session.ask_unanswered("Produce", 9, body(session, name, data, Acks=0))
        session.ask("Metadata", 4, f"after acks 0, {label}", {"Topics": []})
        session.close_all()


# Sequence, epoch and number of records of the batches of one producer.
_SEQUENCES = (
    *(
        (0, 0, 2),
        (2, 0, 2),
        (4, 0, 2),
        (4, 0, 2),
        (0, 0, 2),
        (8, 0, 2),
        (6, 0, 2),
        (8, 0, 2),
        (10, 0, 2),
        (12, 0, 2),
    ),
    *((14, 0, 2), (0, 0, 2), (15, 0, 2), (14, 0, 1), (5, 1, 2), (0, 1, 2), (16, 0, 2), (2, 1, 2)),
    (2**31 - 1, 2, 2),
)


def idempotence(session: Session) -> None:
    for version in (3, 9, 12, 13):
        topic = session.topic(f"idempotent-{version}")
        answer = session.ask(
            "InitProducerId", 4, f"for v{version}", {"TransactionalId": None, "TransactionTimeoutMs": 1000}
        )
        producer = answer["ProducerId"]
        for place, (sequence, epoch, count) in enumerate(_SEQUENCES):
            data = batch(
                *[Record(b"v", b"k", NOW)] * count, producer_id=producer, epoch=epoch, sequence=sequence
            )
            label = f"idempotent {place}: sequence {sequence}, epoch {epoch}, {count} records"
            session.ask("Produce", version, label, body(session, topic, data))
        two = b"".join(
            batch(Record(b"v", b"k", NOW), producer_id=producer, epoch=1, sequence=n) for n in (4, 5)
        )
        session.ask("Produce", version, "idempotent, two batches", body(session, topic, two))


ROOM = [batches, requests, no_records, unacknowledged, idempotence]
