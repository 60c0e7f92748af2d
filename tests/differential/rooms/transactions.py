"""Producer ids and transactions: clients that add partitions, clients that do not (KIP-890), and their offsets."""

from __future__ import annotations

from typing import Any

from tests.differential.rooms import fetch
from tests.differential.rooms.produce import HIDDEN, NOW, body, write
from tests.differential.session import Session, patience
from tests.support.batches import Record, batch

Producer = tuple[str, int, int]
"""Transactional id, producer id and epoch."""


def begun(session: Session, name: str, version: int = 4, timeout_ms: int = 60_000) -> Producer:
    """Return a producer whose id was just given."""
    request = {"TransactionalId": name, "TransactionTimeoutMs": timeout_ms}
    answer = session.ask("InitProducerId", version, None, request)
    return name, answer["ProducerId"], answer["ProducerEpoch"]


def data(producer: Producer, sequence: int, *, transactional: bool = True) -> bytes:
    """Return a batch of one record."""
    _, number, epoch = producer
    record = Record(b"v", b"k", NOW)
    return batch(record, producer_id=number, epoch=epoch, sequence=sequence, transactional=transactional)


def _fields(producer: tuple[str | None, int, int], prefix: str = "") -> dict[str, Any]:
    names = ("TransactionalId", "ProducerId", "ProducerEpoch")
    return {prefix + name: value for name, value in zip(names, producer, strict=True)}


def _wrong(producer: Producer, prefix: str = "") -> dict[str, Any]:
    """Return values that a coordinator refuses."""
    _, number, epoch = producer
    return {
        f"{prefix}TransactionalId": ("unknown-id", ""),
        f"{prefix}ProducerId": {"another": number + 999},
        f"{prefix}ProducerEpoch": {"+1": epoch + 1, "-1": epoch - 1},
    }


def _ended(session: Session, label: str, producer: Producer, version: int = 3, *, commit: bool) -> Any:
    request = {**_fields(producer), "Committed": commit}
    return session.ask("EndTxn", version, f"{label} {'commit' if commit else 'abort'}", request)


def _added(
    session: Session, producer: Producer, topic: str, version: int = 3, label: str | None = None
) -> None:
    topics = [{"Name": topic, "Partitions": [0]}]
    prefix = "V3AndBelow"
    session.ask(
        "AddPartitionsToTxn", version, label, {**_fields(producer, prefix), f"{prefix}Topics": topics}
    )


def _written(
    session: Session,
    label: str,
    producer: Producer,
    topic: str,
    sequence: int,
    version: int = 9,
    **given: Any,
) -> None:
    request = body(session, topic, data(producer, sequence), **{"TransactionalId": producer[0], **given})
    session.ask("Produce", version, label, request, hide=HIDDEN)


def producer_ids(session: Session) -> None:
    for version in session.versions["InitProducerId"]:
        name = f"init-{version}"
        request = {"TransactionalId": name, "TransactionTimeoutMs": 60_000}
        session.ask("InitProducerId", version, "first", request)
        values = {"TransactionalId": (None, ""), "TransactionTimeoutMs": (0, -1, 900_000, 900_001)}
        session.vary("InitProducerId", version, request, values)
        session.vary(
            "InitProducerId",
            version,
            {**request, "TransactionalId": None},
            {"TransactionTimeoutMs": (0, -1)},
            "no id,",
        )
        _, number, epoch = begun(session, name, version)
        for label, given in (
            *(
                ("bump", (name, number, epoch)),
                ("bump again", (name, number, epoch)),
                ("stale", (name, number, 0)),
            ),
            *(
                ("another producer", (name, number + 7777, 0)),
                ("no epoch", (name, number, -1)),
                ("no producer", (name, -1, 3)),
            ),
            *(
                ("no id", (None, number, epoch)),
                ("new id", (f"{name}-new", number, epoch)),
                ("-5", (name, -5, -5)),
            ),
        ):
            if version >= 3:
                session.ask("InitProducerId", version, label, {**request, **_fields(given)})


def additions(session: Session) -> None:
    topic = session.topic("added", 2)
    for version in range(4):
        producer = begun(session, f"adds-{version}")
        prefix = "V3AndBelow"
        request = {**_fields(producer, prefix), f"{prefix}Topics": [{"Name": topic, "Partitions": [0]}]}
        rows = {
            "unknown": [{"Name": "unknown", "Partitions": [0]}],
            "known and unknown": [{"Name": topic, "Partitions": [0]}, {"Name": "unknown", "Partitions": [0]}],
            "partition 9": [{"Name": topic, "Partitions": [0, 9]}],
            "none": [],
            "internal": [{"Name": "__consumer_offsets", "Partitions": [0]}],
        }
        session.vary(
            "AddPartitionsToTxn", version, request, {**_wrong(producer, prefix), f"{prefix}Topics": rows}
        )
        for label in ("good", "again"):
            session.ask("AddPartitionsToTxn", version, label, request)
        _ended(session, f"added v{version}", producer, 0, commit=False)
    for version in (4, 5):
        producer = begun(session, f"adds-{version}")
        row = {**_fields(producer), "VerifyOnly": True, "Topics": [{"Name": topic, "Partitions": [0]}]}
        values: dict[str, Any] = {"Transactions": ([row], [], [{**row, "VerifyOnly": False}], [row, row])}
        session.vary("AddPartitionsToTxn", version, {}, values)
    for version in session.versions["AddOffsetsToTxn"]:
        producer = begun(session, f"adds-offsets-{version}")
        request = {**_fields(producer), "GroupId": "added-group"}
        session.vary(
            "AddOffsetsToTxn",
            version,
            request,
            {**_wrong(producer), "GroupId": ("", "added-group", "added-group")},
        )
        _ended(session, f"added offsets v{version}", producer, min(version, 3), commit=True)


def offsets(session: Session) -> None:
    topic = session.topic("offset", 2)
    for version in session.versions["TxnOffsetCommit"]:
        group, last = f"offset-{version}", 5 if version >= 5 else 3
        producer = begun(session, f"offset-{version}", 5 if version >= 5 else 4)
        row = {"PartitionIndex": 0, "CommittedOffset": 3, "CommittedMetadata": "q"}
        request = {**_fields(producer), "GroupId": group, "Topics": [{"Name": topic, "Partitions": [row]}]}
        session.ask("TxnOffsetCommit", version, "before its group is added", request)
        if version < 5:  # KIP-890
            session.ask("AddOffsetsToTxn", 3, f"for v{version}", {**_fields(producer), "GroupId": group})
        session.ask("TxnOffsetCommit", version, "good", request)
        values = {
            **_wrong(producer),
            "GroupId": ("", "another"),
            "Topics.Name": ("unknown", ""),
            "Topics.Partitions.PartitionIndex": (9,),
            "Topics.Partitions.CommittedMetadata": (None, "x" * 4097),
            "Topics.Partitions.CommittedOffset": (-1,),
            "Topics": ([],),
            "GenerationId": (4,),
            "MemberId": ("x",),
            "GroupInstanceId": ("i",),
        }
        session.vary("TxnOffsetCommit", version, request, values)
        fetched = {"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": [0]}]}
        session.vary("OffsetFetch", 7, fetched, {"RequireStable": (True, False)}, f"pending of v{version},")
        pending = {"Groups": [{"GroupId": group, "Topics": None}], "RequireStable": True}
        session.ask("OffsetFetch", 8, f"pending of v{version}, all", pending)
        _ended(session, f"offsets v{version}", producer, last, commit=True)
        for _ in patience():  # the marker is written after the answer
            answer = session.ask("OffsetFetch", 7, None, {**fetched, "RequireStable": True})
            if not answer["Topics"][0]["Partitions"][0]["ErrorCode"]:
                break
        session.ask("OffsetFetch", 7, f"committed of v{version}", fetched)


def ends(session: Session) -> None:
    topic = session.topic("ended")
    for version in session.versions["EndTxn"]:
        producer = begun(session, f"ends-nothing-{version}", 5 if version >= 5 else 4)
        request = {**_fields(producer), "Committed": True}
        session.vary("EndTxn", version, request, {**_wrong(producer), "Committed": (True,)})
    for version in range(5):
        producer = begun(session, f"ends-{version}")
        _ended(session, "nothing begun", producer, version, commit=False)
        producer = begun(session, f"ends-{version}")
        for place, commit in enumerate((True, False)):
            _added(session, producer, topic)
            _written(session, f"in a transaction {place} (v{version})", producer, topic, place)
            _ended(session, f"{place}:", producer, version, commit=commit)
            for label, again in (("same", commit), ("other", not commit)):
                _ended(session, f"{place}, {label} again:", producer, version, commit=again)
        stale = (producer[0], producer[1], producer[2] - 1)
        _ended(session, "stale", stale, version, commit=True)
        for number in (9, 12):
            _written(session, f"not added (v{version})", producer, topic, 2, number)
        _written(session, f"of another id (v{version})", producer, topic, 2, TransactionalId="unknown-id")
        _added(session, producer, topic)
        later = (producer[0], producer[1], producer[2] + 1)
        _written(session, f"later epoch (v{version})", later, topic, 0)
        plain = body(session, topic, data(producer, 2, transactional=False), TransactionalId=producer[0])
        session.ask("Produce", 9, f"not transactional (v{version})", plain, hide=HIDDEN)
        _ended(session, "last", producer, version, commit=False)


def implicit(session: Session) -> None:
    """KIP-890: Produce adds the partition, and each end gives another epoch."""
    topic = session.topic("implicit")
    name, number, epoch = producer = begun(session, "implicit", 5)
    _written(session, "implicit", producer, topic, 0, 12)
    session.ask(
        "Fetch",
        11,
        "open, committed records only",
        fetch.body(session, topic, fetch.partition(0, 0), IsolationLevel=1),
    )
    session.ask(
        "DescribeTransactions", 0, "open", {"TransactionalIds": [name]}, hide=("TransactionStartTimeMs",)
    )
    session.ask(
        "ListTransactions",
        1,
        "open",
        {"StateFilters": ["Ongoing"], "ProducerIdFilters": [number], "DurationFilter": -1},
    )
    for label, commit in (("first", True), ("again", True), ("again", False)):
        _ended(session, label, producer, 5, commit=commit)
    _written(session, "old epoch", producer, topic, 1, 12)
    for place, (sequence, commit) in enumerate(((0, False), (5, True))):
        later = (name, number, epoch + 1 + place)
        _written(session, f"epoch +{place + 1}, sequence {sequence}", later, topic, sequence, 12)
        _ended(session, f"epoch +{place + 1}", later, 5, commit=commit)
    for change in (2, 3, 4):
        _ended(session, f"empty, epoch +{change}", (name, number, epoch + change), 5, commit=True)


def administration(session: Session) -> None:
    topic = session.topic("inspected", 2)
    producer = begun(session, "inspected")
    _added(session, producer, topic)
    _written(session, "inspected", producer, topic, 0)
    ids: Any = (["unknown-id"], [""], [], ["inspected"], ["inspected"] * 2)
    values: dict[str, Any] = {"TransactionalIds": dict(enumerate(ids))}
    session.vary("DescribeTransactions", 0, {}, values, hide=("TransactionStartTimeMs",))
    values = {
        "StateFilters": {
            str(names): names for names in (["nope"], ["nope", "Ongoing"], ["ongoing"], ["Dead"], [""])
        },
        "ProducerIdFilters": ([99_999_999],),
        "DurationFilter": (10**9, -5),
        "TransactionalIdPattern": (".*spected", "([", "", "inspec"),
    }
    for version in session.versions["ListTransactions"]:
        ongoing = {"StateFilters": ["Ongoing"]}
        session.vary("ListTransactions", version, ongoing, values, hide=("ProducerId",))
        session.ask("ListTransactions", version, "ongoing", ongoing, hide=("ProducerId",))
    row = {"Name": topic, "PartitionIndexes": [0]}
    values = {
        "Topics": ([row], []),
        "Topics.Name": ("unknown", "a/b"),
        "Topics.PartitionIndexes": ([9], [1], [0, 0]),
    }
    session.vary("DescribeProducers", 0, {"Topics": [row]}, values)
    _, number, _ = producer
    marker = {"ProducerId": number, "ProducerEpoch": 50, "TransactionResult": False, "Topics": [row]}
    values = {
        "Markers.Topics.PartitionIndexes": ([9],),
        "Markers.Topics.Name": ("unknown",),
        "Markers.ProducerEpoch": (-1,),
        "Markers.ProducerId": {"another": 987_654},
        "Markers": {"none": []},
    }
    for version in session.versions["WriteTxnMarkers"]:
        session.vary("WriteTxnMarkers", version, {"Markers": [marker]}, values)
    _ended(session, "inspected", producer, commit=True)


def transactional_log(session: Session) -> None:
    """Read what readers get of an aborted, a committed and an open transaction with plain records between them."""
    topic = session.topic("transactional")
    name, *_ = producer = begun(session, "transactional")
    for sequence, commit in ((0, False), (1, True)):
        _added(session, producer, topic)
        _written(session, f"part {sequence}", producer, topic, sequence)
        _ended(session, f"part {sequence}", producer, commit=commit)
        for _ in patience():  # the marker is written after the answer
            answer = session.ask("DescribeTransactions", 0, None, {"TransactionalIds": [name]})
            if answer["TransactionStates"][0]["TransactionState"].startswith("Complete"):
                break
    for place in range(2):
        write(session, topic, batch(Record(b"v", b"k", NOW)), f"plain {place}")
        if not place:
            _added(session, producer, topic)
            _written(session, "open", producer, topic, 2)
    for level in (0, 1):
        for version in (4, 5, 7, 11, 12, 13, 18):
            request = fetch.body(session, topic, fetch.partition(0, 0), IsolationLevel=level)
            session.ask("Fetch", version, f"isolation {level}", request)
        for timestamp in (-1, -2, -3):
            rows = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": timestamp}]}]
            request = {"ReplicaId": -1, "IsolationLevel": level, "Topics": rows}
            session.ask("ListOffsets", 6, f"isolation {level}, time {timestamp}", request)
    session.ask("DescribeProducers", 0, "open", {"Topics": [{"Name": topic, "PartitionIndexes": [0]}]})
    session.ask(
        "InitProducerId", 4, "ends the open one", {"TransactionalId": name, "TransactionTimeoutMs": 60_000}
    )
    _written(session, "fenced", producer, topic, 3)
    _ended(session, "fenced", producer, commit=True)
    for version in (1, 3):
        _added(session, producer, topic, version, f"fenced v{version}")
    request = fetch.body(session, topic, fetch.partition(0, 0), IsolationLevel=1)
    session.ask("Fetch", 11, "after all", request)


ROOM = [producer_ids, additions, offsets, ends, implicit, administration, transactional_log]
