"""CPU per OffsetCommit, Heartbeat and JoinGroup of a whole broker: its worker and its Redis.

Run as `python loadtest/micro/group_requests.py [CHECKOUT ...]` from the repository; see requests.py, whose brokers and
clocks these are. Every connection is a group of one member, and sends one request at a time. What a broker does
afterwards in the background counts too. A join is a repeated one of the leader.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from loadtest.micro import requests
from tests.support.wire_client import WireClient, request_frame

CONNECTIONS = 32
SETTINGS = ("storage.format=batch", "num.partitions=10", "group.initial.rebalance.delay.ms=0")
REST_S = 0.5
ROUNDS = 3


class Case(NamedTuple):
    """A request of every group, and how many of them."""

    name: str
    partitions: int
    requests: int


CASES = (
    Case("commit", 1, 8000),
    Case("commit", 10, 4000),
    Case("heartbeat", 0, 8000),
    Case("join", 0, 4000),
)


class Member(NamedTuple):
    """The one member of a group."""

    group: str
    member: str
    generation: int


def main() -> None:
    """Measure every case on every checkout, alternating, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [requests.ROOT]
    print(f"{'case':12} {'partitions':>10} {'checkout':20} {'worker us':>10} {'Redis us':>9}")
    figures: dict[tuple[Case, Path], list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for checkout in checkouts:
            with requests.broker(checkout, *SETTINGS) as started:
                members = join_all(started.address)
                for case in CASES:
                    frames = [frame(case, each) for each in members]
                    user, system, redis = requests.driven(started, frames, 1, case.requests, REST_S)
                    figures.setdefault((case, checkout), []).append((user + system, redis))
    for (case, checkout), rounds in sorted(figures.items()):
        worker, redis = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{case.name:12} {case.partitions:10} {checkout.name:20} {worker:10.1f} {redis:9.1f}", flush=True
        )


def join_all(address: tuple[str, int]) -> list[Member]:
    """Make a topic, and a stable group for each connection."""
    with WireClient(address) as client:
        named = MetadataRequestTopic(name="bench")
        client.call(MetadataRequest(topics=[named], allow_auto_topic_creation=True), 9)
        members = []
        for n in range(CONNECTIONS):
            joined = client.call(join(f"group-{n}", ""), 3)
            members.append(Member(f"group-{n}", joined.member_id, joined.generation_id))
            sync(client, members[-1])
    return members


def join(group: str, member: str) -> JoinGroupRequest:
    """Return a join, with no delay: version 3 gives an id at once."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"m" * 100)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=600_000,
        rebalance_timeout_ms=600_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[protocol],
    )


def sync(client: WireClient, member: Member) -> None:
    """Assign the member its part."""
    part = SyncGroupRequestAssignment(member_id=member.member, assignment=b"a" * 100)
    client.call(
        SyncGroupRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.member,
            assignments=[part],
        ),
        3,
    )


def frame(case: Case, member: Member) -> bytes:
    """Return the member's request."""
    if case.name == "heartbeat":
        beat = HeartbeatRequest(
            group_id=member.group, generation_id=member.generation, member_id=member.member
        )
        return request_frame(beat, 3)
    if case.name == "join":
        return request_frame(join(member.group, member.member), 3)
    offsets = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(case.partitions)
    ]
    topic = OffsetCommitRequestTopic(name="bench", partitions=offsets)
    commit = OffsetCommitRequest(
        group_id=member.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member,
        topics=[topic],
    )
    return request_frame(commit, 7)


if __name__ == "__main__":
    main()
