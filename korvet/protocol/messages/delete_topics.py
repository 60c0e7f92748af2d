"""DeleteTopics (key 20), versions 1-6, flexible from 4. An administrator deletes topics.

Version 0 is gone since Kafka 4.0. Version 3 allows TOPIC_DELETION_DISABLED. 5 brings a message beside the error
(KIP-599). 6 deletes by id as well as by name (KIP-516).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import ZERO_UUID, int16, int32, string, uuid


class DeleteTopicState(Part, kw_only=True):
    """A topic by name, or by id with a null name."""

    name: string | None = None
    topic_id: uuid = ZERO_UUID


class DeleteTopicsRequest(Message, kw_only=True):
    """Deletes topics: `topics` from version 6 on, `topic_names` before."""

    api = Api(key=20, versions=(1, 6), flexible=4)

    topics: Annotated[list[DeleteTopicState], since(6)] = []
    topic_names: Annotated[list[string], since(0, until=5, ignorable=True)] = []
    timeout_ms: int32


class DeletableTopicResult(Part, kw_only=True):
    """What became of one topic; the name is null if an id is not known."""

    name: Annotated[string | None, since(0, nullable=6)]
    topic_id: Annotated[uuid, since(6, ignorable=True)] = ZERO_UUID
    error_code: int16 = 0
    error_message: Annotated[string | None, since(5, ignorable=True)] = None


class DeleteTopicsResponse(Response, kw_only=True):
    responses: list[DeletableTopicResult] = []
