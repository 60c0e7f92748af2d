"""Fetch, its sessions, and requests about offsets: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from typing import Any

from tests.differential.rooms.produce import NOW, write
from tests.differential.session import Session
from tests.support.batches import CODECS, Record, batch

_HOUR_MS = 3_600_000
_FAR = 2**62


def log(session: Session, name: str) -> str:
    """Return a topic whose partition 0 has four batches of three records, the first deleted; partition 1 is empty."""
    topic = session.topic(name, 2)
    for number in range(4):
        write(session, topic, batch(*(Record(b"v", b"%d" % (3 * number + k), NOW) for k in range(3))))
    rows = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": 3}]}]
    session.ask("DeleteRecords", 2, None, {"Topics": rows, "TimeoutMs": 5000})
    return topic


def partition(index: int, offset: int, **given: Any) -> dict[str, Any]:
    """Return one partition of a fetch."""
    return {"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20, **given}


def body(session: Session, topic: str, *partitions: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Return a fetch of one topic that does not wait."""
    topics = (
        [{"Topic": topic, "TopicId": session.id(topic), "Partitions": list(partitions)}] if partitions else []
    )
    return {"MaxWaitMs": 0, "MinBytes": 0, "Topics": topics, **given}


def reads(session: Session) -> None:
    topic = log(session, "read")
    request = body(session, topic, partition(0, 3))
    epoch = session.epoch(topic)
    row = request["Topics"][0]
    fields: dict[str, Any] = {
        "Topics.Partitions.FetchOffset": (3, 4, 6, 12, 13, _FAR, 0, -1, -2),
        "Topics.Partitions.Partition": (1, 7, -1),
        "Topics.Partitions.PartitionMaxBytes": (1, 0, -1),
        "MaxBytes": (0, 1, -1),
        "IsolationLevel": (1, 2, -1),
        "MaxWaitMs": (-1,),
        "MinBytes": (-1,),
        "Topics.Partitions.LastFetchedEpoch": {"now": epoch, "+9": epoch + 9},
        "Topics.Partitions.CurrentLeaderEpoch": {"now": epoch, "+5": epoch + 5, "-2": -2},
        "ClusterId": ("wrong-cluster",),
        "ReplicaId": (0, 99, -2),
        "ReplicaState": ({"ReplicaId": 99, "ReplicaEpoch": 1}, {"ReplicaId": -2, "ReplicaEpoch": -1}),
        "RackId": ("r1",),
        "Topics.Topic": ("unknown", "a/b", ""),
        "Topics.TopicId": (session.id("unknown"), session.id("")),
        "Topics.Partitions": ([partition(0, 3), partition(0, 6)], []),
        "Topics": ([], [row, {**row, "Partitions": [partition(1, 0)]}]),
    }
    for version in session.versions["Fetch"]:
        session.vary("Fetch", version, request, fields)
        waiting = body(session, topic, partition(0, 12), MaxWaitMs=200, MinBytes=1)
        session.ask("Fetch", version, "nothing new in time", waiting)


def sessions(session: Session) -> None:
    topic = log(session, "session")
    both = body(session, topic, partition(0, 3), partition(1, 0))
    for version in session.versions["Fetch"]:
        if version < 7:  # KIP-227
            continue
        for number, epoch in ((12345, 1), (0, 1), (0, -2)):
            given = body(session, topic, SessionId=number, SessionEpoch=epoch)
            session.ask("Fetch", version, f"session {number}, epoch {epoch}", given)
        opened = session.ask(
            "Fetch", version, "opens a session", {**both, "SessionEpoch": 0}, hide=("SessionId",)
        )
        forgotten = [{"Topic": topic, "TopicId": session.id(topic), "Partitions": [1]}]
        for label, epoch, given in (
            ("nothing new", 1, {}),
            ("wrong epoch", 9, {}),
            ("moved", 2, body(session, topic, partition(0, 12))),
            ("idle", 3, {}),
            ("forgets", 4, {"ForgottenTopicsData": forgotten}),
            ("idle again", 5, {}),
            ("unknown partition", 6, body(session, topic, partition(9, 0))),
            ("unknown partition stays", 7, {}),
            ("closes", -1, {}),
            ("after its end", 8, {}),
        ):
            request = {
                **body(session, topic),
                **given,
                "SessionId": opened["SessionId"],
                "SessionEpoch": epoch,
            }
            session.ask("Fetch", version, f"session, {label}", request, hide=("SessionId",))


def codecs(session: Session) -> None:
    for codec in CODECS[1:]:
        topic = session.topic(f"codec-{codec}")
        data = batch(*[Record(b"v" * 50, b"k", NOW)] * 3, codec=codec)
        for version in (3, 6, 7, 9):
            write(session, topic, data, f"codec {codec}", version)
        for version in (4, 9, 10, 12):
            session.ask("Fetch", version, f"codec {codec}", body(session, topic, partition(0, 0)))


def offsets(session: Session) -> None:
    topic, empty = log(session, "listed"), session.topic("listed-empty")
    epoch = session.epoch(topic)
    places = ((0, timestamp) for timestamp in (-1, -2))
    twice = [{"PartitionIndex": index, "Timestamp": timestamp} for index, timestamp in places]
    row = {"PartitionIndex": 0, "Timestamp": -1}
    request: dict[str, Any] = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [row]}]}
    times = (-1, -2, -3, -4, -5, -6, -7, -100, 0, 1, NOW - _HOUR_MS, NOW + _HOUR_MS, 2**63 - 1)
    fields: dict[str, Any] = {
        "Topics.Partitions.PartitionIndex": (9, -1),
        "Topics.Partitions.CurrentLeaderEpoch": {"now": epoch, "+7": epoch + 7},
        "Topics.Partitions": (twice, []),
        "Topics.Name": ("unknown", "a/b", ""),
        "ReplicaId": (99, -2),
        "IsolationLevel": (1, 9),
        "Topics": ([],),
    }
    for version in session.versions["ListOffsets"]:
        session.vary("ListOffsets", version, request, fields)
        for name, index in ((topic, 0), (topic, 1), (empty, 0)):
            for number, timestamp in enumerate(times):
                given = [{"Name": name, "Partitions": [{"PartitionIndex": index, "Timestamp": timestamp}]}]
                label = f"time {number} of {name} {index}"
                session.ask("ListOffsets", version, label, {"ReplicaId": -1, "Topics": given})


def leader_epochs(session: Session) -> None:
    topic, empty = log(session, "epochs"), session.topic("epochs-empty")
    epoch = session.epoch(topic)
    for version in session.versions["OffsetForLeaderEpoch"]:
        for current in (None, 0, 3):
            for number in (None, 0, 1, 5, -2 - epoch):
                row = {
                    "Partition": 0,
                    "CurrentLeaderEpoch": -1 if current is None else epoch + current,
                    "LeaderEpoch": -1 if number is None else epoch + number,
                }
                for name, index in ((topic, 0), (topic, 1), (topic, 9), (empty, 0), ("unknown", 0)):
                    topics = [{"Topic": name, "Partitions": [{**row, "Partition": index}]}]
                    shown = -2 if number == -2 - epoch else number
                    label = f"current {current}, epoch {shown}, of {name} {index}"
                    session.ask("OffsetForLeaderEpoch", version, label, {"ReplicaId": -1, "Topics": topics})


def deletions(session: Session) -> None:
    compacted = session.topic("deleted-compacted", configs={"cleanup.policy": "compact"})
    write(session, compacted, batch(Record(b"v", b"k", NOW)))
    for version in session.versions["DeleteRecords"]:
        topic = log(session, f"deleted-{version}")
        rows = [{"PartitionIndex": 0, "Offset": offset} for offset in (6, 9)]
        request = {"Topics": [{"Name": topic, "Partitions": rows[:1]}], "TimeoutMs": 3000}
        fields = {
            "Topics.Partitions.Offset": (3, 0, -2, 112, 4),
            "Topics.Partitions.PartitionIndex": (9, 1, -1),
            "Topics.Name": ("unknown", "a/b", "", compacted),
            "Topics.Partitions": (rows, []),
            "Topics": ([],),
            "TimeoutMs": (0, -1),
        }
        session.vary("DeleteRecords", version, request, fields)
        all_of_it = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}]
        session.ask("DeleteRecords", version, "to the end", {"Topics": all_of_it, "TimeoutMs": 3000})
        for offset in (12, 3):
            request = body(session, topic, partition(0, offset))
            session.ask("Fetch", 11, f"all deleted (v{version}), from {offset}", request)
        for timestamp in (-1, -2, -3, -4, -5, 0):
            given = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": timestamp}]}]
            label = f"all deleted (v{version}), time {timestamp}"
            session.ask("ListOffsets", 10, label, {"ReplicaId": -1, "Topics": given})


ROOM = [reads, sessions, codecs, offsets, leader_epochs, deletions]
