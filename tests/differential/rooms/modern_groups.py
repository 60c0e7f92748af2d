"""Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071)."""

from __future__ import annotations

import uuid
from typing import Any

from tests.differential.rooms.fetch import log
from tests.differential.rooms.groups import GROUP_VALUES, commit, join
from tests.differential.rooms.topics import GROUP
from tests.differential.session import Session, patience

_MEMBER = str(uuid.UUID(int=1000))
_CONSUMER = {"RebalanceTimeoutMs": 5000, "TopicPartitions": []}
_UNCHANGED: dict[str, dict[str, Any]] = {
    "ConsumerGroupHeartbeat": {
        "RebalanceTimeoutMs": -1,
        "SubscribedTopicNames": None,
        "TopicPartitions": None,
    },
    "ShareGroupHeartbeat": {"SubscribedTopicNames": None},
    "StreamsGroupHeartbeat": {
        "RebalanceTimeoutMs": -1,
        "Topology": None,
        "ProcessId": None,
        "ClientTags": None,
        **dict.fromkeys(("ActiveTasks", "StandbyTasks", "WarmupTasks")),
    },
}
_HEARTBEAT_VALUES = {
    "GroupId": ("",),
    "MemberId": ("", "x" * 36, "x" * 37, "x" * 300, "not a uuid"),
    "MemberEpoch": (1, -1, -2, -3),
    "RebalanceTimeoutMs": (-1, 0),
    "SubscribedTopicNames": (None, [], [""], ["a/b"], ["unknown"]),
    "SubscribedTopicRegex": ("([", "", "a.*"),
    "TopicPartitions": (None, [{"TopicId": uuid.UUID(int=5), "Partitions": [0]}]),
    "ServerAssignor": ("zz", "", "range"),
    "InstanceId": ("", "i"),
    "RackId": ("", "r"),
}


# Members get their partitions with one of the next heartbeats.
_SOONER_OR_LATER = ("MemberEpoch", "Assignment", "GroupEpoch", "AssignmentEpoch")


def epoch_of(session: Session, api: str, version: int, request: dict[str, Any]) -> int:
    """Join a group and heartbeat until the member has its partitions; returns its epoch."""
    answer = session.ask(api, version, f"joins {request['GroupId']}", request, hide=_SOONER_OR_LATER)
    epoch = answer["MemberEpoch"]
    quiet: dict[str, Any] = {**request, **_UNCHANGED[api]}
    for _ in patience():
        answer = session.ask(api, version, None, {**quiet, "MemberEpoch": epoch})
        epoch = epoch if answer["ErrorCode"] else answer["MemberEpoch"]
        if answer.get("Assignment") or answer.get("ActiveTasks"):
            break
    return int(epoch)


def _heartbeats(
    session: Session, api: str, version: int, request: dict[str, Any], values: dict[str, Any]
) -> None:
    """Vary a request, with a group for each field: values that are taken join it."""
    for path, options in values.items():
        group = {**request, "GroupId": f"{request['GroupId']}-{path}"}
        session.vary(api, version, group, {path: options}, hide=_SOONER_OR_LATER)


def consumer_groups(session: Session) -> None:
    topic = session.topic("consumed", 3)
    for version in session.versions["ConsumerGroupHeartbeat"]:
        group = f"consumer-{version}"
        request: dict[str, Any] = {
            "GroupId": group,
            "MemberId": _MEMBER,
            "MemberEpoch": 0,
            "SubscribedTopicNames": [topic],
            **_CONSUMER,
        }
        _heartbeats(session, "ConsumerGroupHeartbeat", version, request, _HEARTBEAT_VALUES)
        epoch = epoch_of(session, "ConsumerGroupHeartbeat", version, request)
        member: dict[str, Any] = {**request, **_UNCHANGED["ConsumerGroupHeartbeat"], "MemberEpoch": epoch}
        owned = [{"TopicId": session.id(topic), "Partitions": [0, 1, 2]}]
        values: dict[str, Any] = {
            "TopicPartitions": {"all": owned, "null": None},
            "MemberEpoch": (epoch, epoch + 1, epoch - 1, 0),
            "MemberId": ("other",),
        }
        session.vary("ConsumerGroupHeartbeat", version, member, values, "member")
        epoch = epoch_of(session, "ConsumerGroupHeartbeat", version, request)
        _offsets_of_member(session, topic, group, epoch)
        _other_apis(session, topic, group)
        for label, number in (("leaves", -1), ("has left", epoch)):
            session.ask("ConsumerGroupHeartbeat", version, label, {**member, "MemberEpoch": number})
        session.ask("DeleteGroups", 2, f"left {group}", {"GroupsNames": [group]})
        static: dict[str, Any] = {**request, "GroupId": f"{group}-static", "InstanceId": "i1"}
        for step, member_id, epoch in (
            *(("joins", _MEMBER, 0), ("another", "o2", 0), ("leaves for now", _MEMBER, -2)),
            *(("replaced", "o2", 0), ("fenced", _MEMBER, 1), ("leaves", "o2", -1)),
        ):
            given = {**static, "MemberId": member_id, "MemberEpoch": epoch}
            session.ask("ConsumerGroupHeartbeat", version, f"static {step}", given)


def _offsets_of_member(session: Session, topic: str, group: str, epoch: int) -> None:
    who = {
        "good": (_MEMBER, 0),
        "stale": (_MEMBER, -1),
        "ahead": (_MEMBER, 1),
        "unknown": ("x", 0),
        "no epoch": (_MEMBER, -1 - epoch),
    }
    for label, (member, change) in {**who, "outside": ("", -1 - epoch)}.items():
        for version in (8, 9, 10):
            given = {"GroupId": group, "MemberId": member, "GenerationIdOrMemberEpoch": epoch + change}
            session.ask("OffsetCommit", version, f"{label} of {group}", commit(session, topic, **given))
        for version in (9, 10):
            row = {"Name": topic, "TopicId": session.id(topic), "PartitionIndexes": [0]}
            one = {
                "GroupId": group,
                "MemberId": member or None,
                "MemberEpoch": epoch + change,
                "Topics": [row],
            }
            session.ask("OffsetFetch", version, f"{label} of {group}", {"Groups": [one]})


def _other_apis(session: Session, topic: str, group: str) -> None:
    """Ask for a group what is for groups of any kind, and of other kinds."""
    for api in ("ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe"):
        for version in session.versions[api]:
            names = {
                "one": [group],
                "unknown": ["unknown-group"],
                "''": [""],
                "none": [],
                "twice": [group] * 2,
            }
            session.vary(
                api,
                version,
                {"IncludeAuthorizedOperations": True},
                {"GroupIds": names},
                group,
                hide=_SOONER_OR_LATER,
            )
    for version in (5, 6):
        session.ask("DescribeGroups", version, group, {"Groups": [group]})
    synced = {"ProtocolType": "consumer", "ProtocolName": "range"}
    row = {"Name": topic, "Partitions": [{"PartitionIndex": 0}]}
    streams = {"RebalanceTimeoutMs": 100, "ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}
    topology = {"Epoch": 1, "Subtopologies": [{"SubtopologyId": "0", "SourceTopics": [topic]}]}
    for api, version, request in (
        ("Heartbeat", 4, {"GenerationId": 1, "MemberId": _MEMBER}),
        ("LeaveGroup", 4, {"Members": [{"MemberId": "x"}]}),
        ("JoinGroup", 5, join(group, ProtocolType="connect")),
        ("SyncGroup", 5, {**synced, "GenerationId": 1, "MemberId": _MEMBER}),
        ("OffsetDelete", 0, {"Topics": [row]}),
        ("OffsetFetch", 7, {"Topics": None}),
        ("OffsetCommit", 8, commit(session, topic)),
        ("ShareGroupHeartbeat", 1, {"MemberId": "s", "MemberEpoch": 0, "SubscribedTopicNames": [topic]}),
        (
            "ConsumerGroupHeartbeat",
            1,
            {"MemberId": "c", "MemberEpoch": 0, "SubscribedTopicNames": [topic], **_CONSUMER},
        ),
        (
            "StreamsGroupHeartbeat",
            0,
            {"MemberId": "s", **streams, "Topology": topology, "ProcessId": "p", "ClientTags": []},
        ),
        (
            "AlterShareGroupOffsets",
            0,
            {"Topics": [{"TopicName": topic, "Partitions": [{"PartitionIndex": 0}]}]},
        ),
        ("DeleteShareGroupOffsets", 0, {"Topics": [{"TopicName": topic}]}),
    ):
        if not (
            group.startswith("consumer") and api == "ConsumerGroupHeartbeat"
        ) and not api.lower().startswith(group[:5]):
            session.ask(api, version, f"of {group}", {**request, "GroupId": group})
    session.ask("DeleteGroups", 2, f"with members {group}", {"GroupsNames": [group]})


def share_groups(session: Session) -> None:
    topic, group = log(session, "shared"), "share"
    earliest = {"Name": "share.auto.offset.reset", "ConfigOperation": 0, "Value": "earliest"}
    resource = {"ResourceType": GROUP, "ResourceName": group, "Configs": [earliest]}
    session.ask("IncrementalAlterConfigs", 1, "share.auto.offset.reset", {"Resources": [resource]})
    request: dict[str, Any] = {
        "GroupId": group,
        "MemberId": _MEMBER,
        "MemberEpoch": 0,
        "SubscribedTopicNames": [topic],
    }
    names = ("GroupId", "MemberId", "MemberEpoch", "SubscribedTopicNames", "RackId")
    values = {name: _HEARTBEAT_VALUES[name] for name in names}
    _heartbeats(session, "ShareGroupHeartbeat", 1, request, values)
    for version in session.versions["ShareFetch"]:
        member = str(uuid.UUID(int=2000 + version))
        epoch = epoch_of(session, "ShareGroupHeartbeat", 1, {**request, "MemberId": member})
        quiet: dict[str, Any] = {**request, "MemberId": member, **_UNCHANGED["ShareGroupHeartbeat"]}
        session.vary(
            "ShareGroupHeartbeat",
            1,
            quiet,
            {"MemberEpoch": {"now": epoch, "+1": epoch + 1}},
            "member",
            hide=_SOONER_OR_LATER,
        )
        _share_openings(session, topic, group, version)
        _share_session(session, topic, group, member, version)
        if version == session.versions["ShareFetch"][0]:
            _other_apis(session, topic, group)
        session.ask("ShareGroupHeartbeat", 1, "leaves", {**quiet, "MemberEpoch": -1})
    _share_offsets(session, topic, group)


def _acknowledged(first: int, last: int, kinds: list[int]) -> list[dict[str, Any]]:
    return [{"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": kinds}]


_LIMITS = {"MaxWaitMs": 100, "MinBytes": 1, "MaxRecords": 2, "BatchSize": 2}
_LOCK = ("AcquisitionLockTimeoutMs",)


def _share_partition(session: Session, topic: str, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    partition = {"PartitionIndex": 0, "AcknowledgementBatches": batches}
    return [{"TopicId": session.id(topic), "Partitions": [partition]}]


def _share_session(session: Session, topic: str, group: str, member: str, version: int) -> None:
    shared = {"GroupId": group, "MemberId": member}
    topics = _share_partition(session, topic, [])
    epoch = _acknowledgements(session, topic, shared, version)
    unknown = [{**topics[0], "TopicId": uuid.UUID(int=6)}]
    # What a broker takes moves the epoch on.
    for label, number, given in (
        *(("first epoch", 0, topics), ("no topics", None, []), ("unknown topic", None, unknown)),
        *(("wrong epoch", 9999, topics), ("closes", -1, topics), ("after its end", None, topics)),
    ):
        asked = {**shared, "ShareSessionEpoch": epoch if number is None else number, "Topics": given}
        answer = session.ask("ShareAcknowledge", version, label, asked, hide=_LOCK)
        epoch += number is None and not answer.get("ErrorCode", 1)


def _share_openings(session: Session, topic: str, group: str, version: int) -> None:
    at_once = _share_partition(session, topic, _acknowledged(3, 3, [1]))
    values: dict[str, Any] = {
        "GroupId": (None,),
        "MemberId": (None, "", "unknown"),
        "ShareSessionEpoch": (5, -1),
        "MaxRecords": (0, -1),
        "BatchSize": (0,),
        "Topics": (at_once,),
    }
    topics = _share_partition(session, topic, [])
    for path, options in values.items():
        member = {"GroupId": group, "MemberId": f"another-{version}-{path}", "ShareSessionEpoch": 0}
        request = {**member, **_LIMITS, "Topics": topics}
        hide = (*_LOCK, "AcquiredRecords", "Records")
        session.vary("ShareFetch", version, request, {path: options}, on=f"share {path}", hide=hide)


def _acquired(session: Session, topic: str, shared: dict[str, Any], version: int) -> tuple[int, int, int]:
    """Open a share session; returns the first and last offset of the records it gets, and its next epoch."""
    for epoch, _ in enumerate(patience()):
        topics = [] if epoch else _share_partition(session, topic, [])
        request = {**shared, **_LIMITS, "ShareSessionEpoch": epoch, "Topics": topics}
        answer = session.ask("ShareFetch", version, None, request)
        partitions = [row for part in answer.get("Responses", ()) for row in part["Partitions"]]
        for row in (row for part in partitions for row in part["AcquiredRecords"] or ()):
            return row["FirstOffset"], row["LastOffset"], epoch + 1
    return 0, 0, 1


def _acknowledgements(session: Session, topic: str, shared: dict[str, Any], version: int) -> int:
    """Acknowledge what a session gets in every way; returns the next epoch of the session."""
    first, last, epoch = _acquired(session, topic, shared, version)
    session.note("acquired", "ShareFetch", version, {"Records": f"{first} to {last}"})
    batches = {
        "wrong type": _acknowledged(first, first, [9]),
        "not acquired": _acknowledged(last + 1000, last + 1001, [1]),
        "last before first": _acknowledged(last, first - 1, [1]),
        "no type": _acknowledged(last, last, []),
        "two types for one": _acknowledged(last, last, [1, 2]),
        "accepts": _acknowledged(first, first, [1]),
        "accepts again": _acknowledged(first, first, [1]),
        "gap": _acknowledged(last, last, [0]),
        "renews": _acknowledged(last, last, [4]),
        "releases": _acknowledged(last, last, [2]),
    }
    for api in ("ShareFetch", "ShareAcknowledge"):
        for label, rows in batches.items():
            limits = _LIMITS if api == "ShareFetch" else {}
            topics = _share_partition(session, topic, rows)
            request = {**shared, **limits, "ShareSessionEpoch": epoch, "Topics": topics}
            session.ask(api, version, label, request, hide=(*_LOCK, "Records"))
            epoch += 1
    return epoch


def _share_offsets(session: Session, topic: str, group: str) -> None:
    row = {"TopicName": topic, "Partitions": [0]}
    values: dict[str, Any] = {
        "Groups.GroupId": (*GROUP_VALUES, "consumer-0"),
        "Groups.Topics": (None, []),
        "Groups.Topics.TopicName": ("unknown", topic),
        "Groups.Topics.Partitions": ([9],),
        "Groups": ([],),
    }
    for version in session.versions["DescribeShareGroupOffsets"]:
        request = {"Groups": [{"GroupId": group, "Topics": [row]}]}
        session.vary("DescribeShareGroupOffsets", version, request, values)
    altered = {
        "GroupId": group,
        "Topics": [{"TopicName": topic, "Partitions": [{"PartitionIndex": 0, "StartOffset": 6}]}],
    }
    values = {
        "Topics.Partitions.StartOffset": (6, -5, 1000),
        "Topics.Partitions.PartitionIndex": (9,),
        "Topics.TopicName": ("unknown",),
        "GroupId": GROUP_VALUES,
        "Topics": ([],),
    }
    session.vary("AlterShareGroupOffsets", 0, altered, values)
    session.ask("DescribeShareGroupOffsets", 1, "altered", {"Groups": [{"GroupId": group, "Topics": None}]})
    deleted = {"GroupId": group, "Topics": [{"TopicName": topic}]}
    values = {"Topics.TopicName": ("unknown", topic, topic), "GroupId": GROUP_VALUES, "Topics": ([],)}
    session.vary("DeleteShareGroupOffsets", 0, deleted, values)
    session.ask("DeleteGroups", 2, "share", {"GroupsNames": [group]})


_TASKS: dict[str, Any] = {"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}
_CHANGELOG = {"Name": "streamed-changelog", "TopicConfigs": [{"Key": "cleanup.policy", "Value": "compact"}]}
_SUBTOPOLOGIES: dict[str, dict[str, Any]] = {
    "regex": {"SourceTopics": [], "SourceTopicRegex": ["a.*"]},
    "unknown source": {"SourceTopics": ["unknown"]},
    "internal topics": {"StateChangelogTopics": [_CHANGELOG]},
    "copartitions of nothing": {"CopartitionGroups": [{"SourceTopics": [5]}]},
}


def streams_groups(session: Session) -> None:
    api, topic, group = "StreamsGroupHeartbeat", session.topic("streamed", 2), "streams"
    part: dict[str, Any] = {"SubtopologyId": "0", "SourceTopics": [topic]}
    topology: dict[str, Any] = {"Epoch": 1, "Subtopologies": [part]}
    task = {"SubtopologyId": "0", "Partitions": [0]}
    member = {"GroupId": group, "MemberId": "m1", "MemberEpoch": 0, "RebalanceTimeoutMs": 5000}
    request: dict[str, Any] = {**member, "Topology": topology, **_TASKS, "ProcessId": "p", "ClientTags": []}
    names = ("GroupId", "MemberId", "RebalanceTimeoutMs", "InstanceId", "RackId")
    empty, negative = {"Epoch": 1, "Subtopologies": []}, {**topology, "Epoch": -1}
    values: dict[str, Any] = {
        **{name: _HEARTBEAT_VALUES[name] for name in names},
        "MemberEpoch": (4, -1, -2, -4),
        "Topology": {"null": None, "empty": empty, "epoch -1": negative},
        "Topology.Subtopologies": {label: [{**part, **change}] for label, change in _SUBTOPOLOGIES.items()},
        **{name: {"null": None, "one": [task]} for name in _TASKS},
        "ProcessId": (None, ""),
        "UserEndpoint": ({"Host": "h", "Port": 0}, {"Host": "h", "Port": 1}),
    }
    _heartbeats(session, api, 0, request, values)
    epoch = epoch_of(session, api, 0, request)
    quiet: dict[str, Any] = {**request, **_UNCHANGED[api], "MemberEpoch": epoch}
    values = {
        "MemberEpoch": {"now": epoch, "+1": epoch + 1, "-1": epoch - 1},
        "MemberId": ("other",),
        "ActiveTasks": ([{**task, "Partitions": [0, 1]}],),
    }
    session.vary(api, 0, quiet, values, "member")
    others: tuple[dict[str, Any], ...] = {"Subtopologies": [{**part, "SubtopologyId": "9"}]}, {"Epoch": 2}
    for place, change in enumerate(others):
        other = {**request, "MemberId": f"m{place}-other", "Topology": {**topology, **change}}
        session.ask(api, 0, f"other topology {place}", other)
    _other_apis(session, topic, group)
    for later in (0, 3):
        given = {"GroupId": group, "MemberId": "m1", "GenerationIdOrMemberEpoch": epoch + later}
        session.ask("OffsetCommit", 9, f"streams, epoch {later:+}", commit(session, topic, **given))
    for name in ("m1", "m0-other", "m1-other"):
        session.ask(api, 0, f"{name} leaves", {**quiet, "MemberId": name, "MemberEpoch": -1})
    session.ask("DeleteGroups", 2, "streams", {"GroupsNames": [group]})


ROOM = [consumer_groups, share_groups, streams_groups]
