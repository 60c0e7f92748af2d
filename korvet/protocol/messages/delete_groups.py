"""DeleteGroups (key 42), versions 0-2, flexible from 2. An administrator deletes groups that have no members."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import int16, string


class DeleteGroupsRequest(Message, kw_only=True):
    api = Api(key=42, versions=(0, 2), flexible=2)

    groups_names: list[string]


class DeletableGroupResult(Part, kw_only=True):
    group_id: string
    error_code: int16 = 0


class DeleteGroupsResponse(Response, kw_only=True):
    results: list[DeletableGroupResult] = []
