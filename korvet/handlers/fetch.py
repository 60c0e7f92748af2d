"""Fetch (key 1), versions 4-18: reads partitions, and waits for records if there are too few.

korvet_core.DataPath serves it, from the frame to the response, and asks server/decisions.py what it cannot know. Of
the requests themselves only those come here that are refused before a client has logged in, or after its session has
ended.

Since version 7 a client may have a session, and name only the partitions that are new or at another offset (KIP-227).
Versions up to 12 name topics, later ones give ids; INCONSISTENT_TOPIC_ID is never answered, for an id alone says which
topic is meant. Leader epochs are checked since version 9, and since version 12 the epoch of the last record that a
client has (KIP-320, KIP-595). zstd batches are handed out in every version, as Apache Kafka 4 does. A read_committed
client gets the records below the last stable offset, and a list of their aborted transactions (KIP-98).

Errors: FENCED_LEADER_EPOCH, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import NoReturn

from korvet.errors import ErrorCode, KafkaError, ProtocolError, partition_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER, CLUSTER_ACTION, READ, TOPIC, by_handler
from korvet.protocol.messages import fetch as wire
from korvet.protocol.wire import ZERO_UUID

SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


def handle(_request: wire.FetchRequest, _caller: Caller, _services: Services) -> NoReturn:
    """Raise ProtocolError: a client that may fetch is served by the core."""
    raise ProtocolError("a Fetch request of a client that has no session")


def _refuse(request: wire.FetchRequest, _caller: Caller, error: KafkaError) -> wire.FetchResponse:
    """Answer with the error, for the whole fetch and, since versions below 7 know no other, for every partition."""
    if error.code in SESSION_ERRORS:
        return wire.FetchResponse(error_code=error.code)
    code = partition_code(error)
    responses = [
        wire.FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id or ZERO_UUID,
            partitions=[
                wire.PartitionData(
                    partition_index=partition.partition,
                    error_code=code,
                    high_watermark=-1,
                    aborted_transactions=[],
                    records=[],
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return wire.FetchResponse(error_code=error.code, responses=responses)


register(
    handle,
    _refuse,
    # Of a session's partitions, most of which no request names; of a follower.
    rights=[by_handler((READ, TOPIC), (CLUSTER_ACTION, CLUSTER))],
)
