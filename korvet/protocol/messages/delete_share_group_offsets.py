"""DeleteShareGroupOffsets (key 92), versions 0-0, flexible from 0. A share group without members forgets topics."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage
from korvet.protocol.wire import int16, string, uuid


class DeleteShareGroupOffsetsRequestTopic(Part, kw_only=True):
    topic_name: string


class DeleteShareGroupOffsetsRequest(Message, kw_only=True):
    api = Api(key=92, versions=(0, 0), flexible=0)

    group_id: string
    topics: list[DeleteShareGroupOffsetsRequestTopic]


class DeleteShareGroupOffsetsResponseTopic(Part, kw_only=True):
    topic_name: string
    topic_id: uuid
    error_code: int16 = 0
    error_message: string | None = None


class DeleteShareGroupOffsetsResponse(ResponseWithMessage, kw_only=True):
    """The result for every topic of the request, or the error of the group and no topics."""

    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
