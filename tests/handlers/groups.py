"""A member of a group, by bytes: a connection with the requests of membership."""

from __future__ import annotations

from typing import Any

from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.support.topic_client import Client

JOIN, SYNC, HEARTBEAT, LEAVE = 9, 5, 4, 5


def join_request(group: str, member: str = "", **fields: Any) -> JoinGroupRequest:
    """Ask to join; `protocols` are names with metadata."""
    protocols = fields.pop("protocols", {"range": b"topics"})
    given: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
    }
    return JoinGroupRequest(group_id=group, member_id=member, **given | fields)


def sync_request(
    group: str, member: str, generation: int, parts: dict[str, bytes] | None = None, **fields: Any
) -> SyncGroupRequest:
    """Ask for a part, as a consumer of join_request; `parts` are the leader's."""
    assignments = [
        SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in (parts or {}).items()
    ]
    given: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} | fields
    return SyncGroupRequest(
        group_id=group, member_id=member, generation_id=generation, assignments=assignments, **given
    )


class Member:
    """One member on one connection; `id` is its member id."""

    def __init__(self, client: Client, group: str, **fields: Any) -> None:
        self.client, self.group, self.fields = client, group, fields
        self.id = ""
        self.generation = -1

    def begin_join(self, version: int = JOIN, **fields: Any) -> None:
        """Send a join with the member's id; a new member asks for one first."""
        if not self.id and not self.fields.get("group_instance_id") and version >= 4:
            answer = self.client.call(join_request(self.group, **self.fields | fields), version)
            assert answer.error_code == 79
            self.id = answer.member_id
        self.client.send(join_request(self.group, self.id, **self.fields | fields), version, 77)

    def end_join(self, version: int = JOIN) -> Any:
        answer = self.client.receive(JoinGroupResponse, version, 77)
        if answer.error_code == 0:
            self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, version: int = JOIN, **fields: Any) -> Any:
        self.begin_join(version, **fields)
        return self.end_join(version)

    def begin_sync(self, parts: dict[str, bytes] | None = None, version: int = SYNC, **fields: Any) -> None:
        if version >= 3 and "group_instance_id" in self.fields:
            fields.setdefault("group_instance_id", self.fields["group_instance_id"])
        request = sync_request(
            self.group, self.id, fields.pop("generation", self.generation), parts, **fields
        )
        self.client.send(request, version, 78)

    def end_sync(self, version: int = SYNC) -> Any:
        return self.client.receive(SyncGroupResponse, version, 78)

    def sync(self, parts: dict[str, bytes] | None = None, version: int = SYNC, **fields: Any) -> Any:
        self.begin_sync(parts, version, **fields)
        return self.end_sync(version)

    def heartbeat(self, version: int = HEARTBEAT, **fields: Any) -> int:
        given: dict[str, Any] = {"member_id": self.id, "generation_id": self.generation} | fields
        code: int = self.client.call(HeartbeatRequest(group_id=self.group, **given), version).error_code
        return code
