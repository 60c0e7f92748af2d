"""Classic groups, their offsets, and coordinators."""

from __future__ import annotations

import base64
from typing import Any

from tests.differential.session import Session

_SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\0\0\0\0"
_RANGE = [{"Name": "range", "Metadata": _SUBSCRIPTION}]
GROUP_VALUES = ("", "unknown-group")


def coordinators(session: Session) -> None:
    known = session.id(session.topic("coordinated"))
    for version in session.versions["FindCoordinator"]:
        for kind in (0, 1, 2, 3, -1):
            request = {"Key": "group", "CoordinatorKeys": ["group"], "KeyType": kind}
            values = {"Key": ("group", "", "x" * 300), "CoordinatorKeys": (["group"], [""], [], ["a", "a"])}
            session.vary("FindCoordinator", version, request, values, f"type {kind}")
        keys = {
            "known topic": [f"g:{base64.urlsafe_b64encode(known.bytes)[:22].decode()}:0"],
            **{f"share key {key}": [key] for key in ("g:AAAAAAAAAAAAAAAAAAAAAA:0", "g:x:0", "no-colon")},
            **{
                f"share key {key}": [key]
                for key in ("g:AAAAAAAAAAAAAAAAAAAAAQ:-1", ":AAAAAAAAAAAAAAAAAAAAAQ:0")
            },
        }
        session.vary("FindCoordinator", version, {"KeyType": 2}, {"CoordinatorKeys": keys})


def joined(session: Session, group: str, version: int = 9, **given: Any) -> tuple[str, int]:
    """Join a group as its only member; returns member id and generation."""
    request = join(group, **given)
    answer = session.ask("JoinGroup", version, f"joins {group}", request)
    if answer["ErrorCode"]:
        request["MemberId"] = answer["MemberId"]
        answer = session.ask("JoinGroup", version, f"joins {group} with its id", request)
    return answer["MemberId"], answer["GenerationId"]


def join(group: str, **given: Any) -> dict[str, Any]:
    """Return a request to join a group."""
    timeouts = {"SessionTimeoutMs": 300_000, "RebalanceTimeoutMs": 10_000}
    return {
        "GroupId": group,
        **timeouts,
        "MemberId": "",
        "ProtocolType": "consumer",
        "Protocols": _RANGE,
        **given,
    }


def members(session: Session) -> None:
    for version in session.versions["JoinGroup"]:
        group = f"joined-{version}"
        values: dict[str, Any] = {
            "GroupId": ("",),
            "SessionTimeoutMs": (0, 1, -1, 2**31 - 1),
            "RebalanceTimeoutMs": (-5,),
            "MemberId": ("nobody",),
            "ProtocolType": ("",),
            "Protocols": ([],),
        }
        session.vary("JoinGroup", version, join(f"{group}-other"), values)
        for place, instance in enumerate(("a/b", "", "x" * 250, "..")):
            one = {"GroupInstanceId": (instance,)}
            session.vary("JoinGroup", version, join(f"{group}-static-{place}"), one)
        member, generation = joined(session, group, version)
        values = {"ProtocolType": ("connect",), "Protocols": {"another": [{"Name": "zz", "Metadata": b""}]}}
        session.vary("JoinGroup", version, join(group, MemberId=member), values, "member")
        session.vary("JoinGroup", version, join(group), values, "new member")
        session.ask("JoinGroup", version, "again", join(group, MemberId=member))
        _member(session, group, member, generation)
    for version in session.versions["LeaveGroup"]:
        group = f"left-{version}"
        member, _ = joined(session, group)
        rows: Any = (
            *([{"MemberId": "x"}], [], [{"MemberId": "", "GroupInstanceId": "i"}]),
            *(
                [{"MemberId": member, "GroupInstanceId": "i"}],
                [{"MemberId": member}],
                [{"MemberId": member}] * 2,
            ),
        )
        request = {"GroupId": group, "MemberId": member, "Members": [{"MemberId": "x"}]}
        session.vary("LeaveGroup", version, request, {"GroupId": GROUP_VALUES, "Members": rows})
        session.vary(
            "LeaveGroup",
            version,
            request,
            {"MemberId": {"unknown": "x", "": "", "good": member, "again": member}},
        )


def _member(session: Session, group: str, member: str, generation: int) -> None:
    """Ask what a member asks; the label names the group, so the version that it joined in."""
    base = {"GroupId": group, "GenerationId": generation, "MemberId": member}
    synced = {"ProtocolType": "consumer", "ProtocolName": "range"}
    assigned = {**base, **synced, "Assignments": [{"MemberId": member, "Assignment": b"abc"}]}
    values = {
        "GenerationId": (generation + 1, -1),
        "MemberId": ("nobody", ""),
        "GroupId": GROUP_VALUES,
        "GroupInstanceId": ("unknown", ""),
        "ProtocolType": ("connect", None),
        "ProtocolName": ("zz", None),
    }
    for version in session.versions["SyncGroup"]:
        session.vary("SyncGroup", version, assigned, values, group)
        session.ask("SyncGroup", version, f"{group} good", assigned)
        session.ask("SyncGroup", version, f"{group} without assignments", {**assigned, "Assignments": []})
    values = {name: values[name] for name in ("GenerationId", "MemberId", "GroupId", "GroupInstanceId")}
    for version in session.versions["Heartbeat"]:
        session.vary("Heartbeat", version, base, values, group)
        session.ask("Heartbeat", version, f"{group} good", base)


def static_member(session: Session) -> None:
    group = "static"
    static: dict[str, Any] = {"GroupInstanceId": "i1"}
    old, generation = joined(session, group, **static)
    synced = {"GroupId": group, **static, "ProtocolType": "consumer", "ProtocolName": "range"}
    assigned = {**synced, "GenerationId": generation, "MemberId": old}
    session.ask(
        "SyncGroup", 5, "synced", {**assigned, "Assignments": [{"MemberId": old, "Assignment": b"a"}]}
    )
    member, generation = joined(session, group, **static)
    for label, name in (("fenced", old), ("good", member)):
        base = {"GroupId": group, "GenerationId": generation, "MemberId": name, **static}
        session.ask("Heartbeat", 4, label, base)
        session.ask(
            "OffsetCommit",
            9,
            label,
            commit(
                session, "none", MemberId=name, GroupId=group, GenerationIdOrMemberEpoch=generation, **static
            ),
        )
        session.ask("JoinGroup", 9, label, join(group, MemberId=name, **static))
        session.ask(
            "SyncGroup", 5, label, {**synced, "GenerationId": generation, "MemberId": name, "Assignments": []}
        )
    session.ask("DescribeGroups", 5, "static", {"Groups": [group]})
    for name, instance in (("x", "i1"), ("", "i2"), ("", "i1")):
        rows = [{"MemberId": name, "GroupInstanceId": instance, "Reason": "q"}]
        session.ask("LeaveGroup", 5, f"{name!r} {instance}", {"GroupId": group, "Members": rows})
    session.ask("DeleteGroups", 2, "static", {"GroupsNames": [group]})


def commit(session: Session, topic: str, **given: Any) -> dict[str, Any]:
    """Return a commit of offset 5 in partition 0, as a client outside of the group does."""
    row = {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedMetadata": "m"}
    topics = [{"Name": topic, "TopicId": session.id(topic), "Partitions": [row]}]
    return {"GroupId": "simple", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": topics, **given}


def offsets(session: Session) -> None:
    topic = session.topic("committed", 2)
    unknown = {"Topics.Name": ("unknown", "a/b", ""), "Topics.TopicId": (session.id("unknown"),)}
    for version in session.versions["OffsetCommit"]:
        group = f"committed-{version}"
        member, generation = joined(session, group)
        good = commit(session, topic, GroupId=group, GenerationIdOrMemberEpoch=generation, MemberId=member)
        row = good["Topics"][0]
        values = {
            "GenerationIdOrMemberEpoch": (generation + 5, 0, -1, -2),
            "MemberId": ("x", ""),
            "GroupId": GROUP_VALUES,
            "GroupInstanceId": ("i1",),
            "RetentionTimeMs": (5,),
            "Topics.Partitions.PartitionIndex": (9, -1),
            "Topics.Partitions.CommittedOffset": (-1, -5, 6),
            "Topics.Partitions.CommittedMetadata": (None, "x" * 4096, "x" * 4097),
            "Topics.Partitions.CommittedLeaderEpoch": (3,),
            **unknown,
            "Topics": ([], [row, row]),
        }
        session.vary("OffsetCommit", version, good, values)
        synced = {
            "GroupId": group,
            "GenerationId": generation,
            "MemberId": member,
            "ProtocolType": "consumer",
            "ProtocolName": "range",
        }
        session.ask("SyncGroup", 5, f"before commits v{version}", {**synced, "Assignments": []})
        session.vary("OffsetCommit", version, good, values, "synced")
        session.ask("OffsetCommit", version, "good", good)
        session.ask("OffsetCommit", version, "simple", commit(session, topic, GroupId=f"simple-{version}"))
    _fetched(session, topic, "committed-9")


def _fetched(session: Session, topic: str, group: str) -> None:
    named = {"Name": topic, "PartitionIndexes": [0, 1, 9]}
    row = {**named, "TopicId": session.id(topic)}
    members = {"x 1": ("x", 1), "x -1": ("x", -1), "'' 0": ("", 0), "null 5": (None, 5), "null 0": (None, 0)}
    for version in session.versions["OffsetFetch"]:
        values: dict[str, Any] = {
            "GroupId": GROUP_VALUES,
            "Topics.Name": ("unknown", "a/b"),
            "Topics": ([], None, [named, named]) if version >= 2 else ([],),
            "RequireStable": (True,),
        }
        session.vary("OffsetFetch", version, {"GroupId": group, "Topics": [named]}, values)
        one = {"GroupId": group, "Topics": [row]}
        several = {"Groups": [one]}
        values = {
            "Groups.GroupId": GROUP_VALUES,
            "Groups.Topics": ([], None),
            "Groups.Topics.Name": ("unknown",),
            "Groups.Topics.TopicId": (session.id("unknown"), session.id("")),
            "Groups": ([], [one, one], [one, {**one, "GroupId": "unknown-group", "Topics": None}]),
            "RequireStable": (True,),
        }
        session.vary("OffsetFetch", version, several, values)
        for name in (group, "unknown-group") if version >= 9 else ():
            rows = {
                label: [{**one, "GroupId": name, "MemberId": member, "MemberEpoch": epoch}]
                for label, (member, epoch) in members.items()
            }
            session.vary("OffsetFetch", version, several, {"Groups": rows}, f"of {name}, by")


def administration(session: Session) -> None:
    topic = session.topic("administered")
    member, generation = joined(session, "administered")
    assigned = {
        "GroupId": "administered",
        "GenerationId": generation,
        "MemberId": member,
        "ProtocolType": "consumer",
        "ProtocolName": "range",
    }
    session.ask(
        "SyncGroup", 5, "synced", {**assigned, "Assignments": [{"MemberId": member, "Assignment": b"abc"}]}
    )
    for number in range(3):
        session.ask(
            "OffsetCommit", 9, f"simple {number}", commit(session, topic, GroupId=f"administered-{number}")
        )
    groups: Any = (["administered"], ["unknown-group"], [""], ["administered-0"], [], ["administered"] * 2)
    for version in session.versions["DescribeGroups"]:
        request: dict[str, Any] = {"IncludeAuthorizedOperations": True}
        session.vary("DescribeGroups", version, request, {"Groups": dict(enumerate(groups))})
    for version in session.versions["ListGroups"]:
        states = (
            ["Stable"],
            ["stable"],
            ["Empty"],
            ["Dead"],
            ["nope"],
            ["Stable", "Empty"],
            ["PreparingRebalance"],
            [""],
        )
        types = (["classic"], ["Classic"], ["consumer"], ["nope"], [""], ["share"], ["streams"], ["unknown"])
        session.ask("ListGroups", version, "all", {})
        values: dict[str, Any] = {
            "StatesFilter": {str(names): names for names in states},
            "TypesFilter": {str(names): names for names in types},
        }
        session.vary("ListGroups", version, {}, values)
    row = {"Name": topic, "Partitions": [{"PartitionIndex": 0}]}
    values = {
        "GroupId": ("administered", "unknown-group", "", "administered-0", "administered-0"),
        "Topics.Name": ("unknown", topic),
        "Topics.Partitions.PartitionIndex": (9,),
        "Topics": ([],),
    }
    request = {"GroupId": "administered-1", "Topics": [row]}
    session.vary("OffsetDelete", 0, {**request, "GroupId": "administered-0"}, values)
    for version in session.versions["DeleteGroups"]:
        names: Any = (
            ["administered", "unknown-group", "", f"administered-{version}", f"administered-{version}"],
            [],
        )
        session.vary("DeleteGroups", version, {}, {"GroupsNames": dict(enumerate(names))})


ROOM = [coordinators, members, static_member, offsets, administration]
