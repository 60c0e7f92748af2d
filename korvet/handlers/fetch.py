"""Fetch (key 1), versions 4-18: reads partitions, and waits for records if there are too few.

korvet_core.DataPath serves it, from the frame to the response; this decides what the core cannot know: rights,
partitions and quotas. Of the requests themselves only those come here that are refused before a client has logged in,
or after its session has ended.

Since version 7 a client may have a session, and name only the partitions that are new or at another offset (KIP-227).
Versions up to 12 name topics, later ones give ids; INCONSISTENT_TOPIC_ID is never answered, for an id alone says which
topic is meant. Leader epochs are checked since version 9, and since version 12 the epoch of the last record that a
client has (KIP-320, KIP-595). zstd batches are handed out in every version, as Apache Kafka 4 does. A read_committed
client gets the records below the last stable offset, and a list of their aborted transactions (KIP-98).

Errors: FENCED_LEADER_EPOCH, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError, ProtocolError, partition_code
from korvet.handlers.context import Caller, Services
from korvet.handlers.produce import THROTTLED_BY, Client
from korvet.handlers.registry import Reply, register
from korvet.handlers.rights import CLUSTER, CLUSTER_ACTION, READ, TOPIC, by_handler
from korvet.log.partition_finder import PartitionFinder
from korvet.protocol.messages import fetch as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import ALL_RIGHTS, Authorizer, refusal
from korvet.security.quotas import Quota
from korvet.security.session import Session
from korvet.topics.types import TopicRef
from korvet.turns import in_turns

SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class FetchDecisions:
    """Decides, in one worker, on what the core asks about the requests of its consumers."""

    def __init__(
        self,
        services: Services,
        authorizer: Authorizer | None,
        limit: Callable[[Session, str | None], int | None],
        charge: Callable[[Session, str | None, int, float], tuple[int, Quota]],
    ) -> None:
        """`limit` returns how many bytes a client may fetch at once by its quota, None for any number.

        `charge` counts an answer, by bytes and seconds, and returns for how long its client has to wait (ms).
        """
        self._services, self._authorizer = services, authorizer
        self._limit, self._charge = limit, charge
        self._finder = PartitionFinder(services.topics, services.appends)

    def decide(self, client: Client | None, word: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the decisions on questions of one kind, a KafkaError for what is refused.

        `client` is None once its connection is gone. Redis is asked once or twice what topics there are, however many
        are not known.
        """
        if word == "topic":
            return self._finder.find(asked)
        # Before the rights are looked at, for it may wait: what is granted is what holds now.
        ids = (TopicRef("", about[1]) for about in asked if word == "right" and isinstance(about[1], bytes))
        outage = self._finder.refresh_for((ref, 0) for ref in ids)
        decisions: list[Any] = []
        for about in in_turns(asked):
            try:
                decisions.append(self._decide(client, word, about, outage))
            except KafkaError as error:
                decisions.append(error.without_frames())
        return decisions

    def _decide(
        self, client: Client | None, word: str, about: tuple[Any, ...], outage: KafkaError | None
    ) -> Any:  # noqa: ANN401 - as ClientDecisions has it
        if client is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "its connection is gone")
        if word == "right":
            kind, name = about
            return self._right(client, kind, name, outage)
        if word == "limit":
            most = self._limit(client.session, *about)
            return INT32_MAX if most is None else most
        ms, quota = self._charge(client.session, *about)
        return "throttle", ms, THROTTLED_BY.index(quota)

    def _right(self, client: Client, kind: str, name: str | bytes, outage: KafkaError | None) -> None:
        named = self._finder.topic(TopicRef("", name), outage).name if isinstance(name, bytes) else name
        authorizer = self._authorizer
        rights = ALL_RIGHTS if authorizer is None else authorizer.rights(client.session, "Fetch")
        rights.check_fresh()
        if kind == "cluster":
            if not rights.allows_cluster(CLUSTER_ACTION):
                raise refusal(TOPIC)
        elif not rights.allows(READ, TOPIC, named):
            raise refusal(TOPIC)
        self._services.appends.core.grant(client.number, False, kind, name)  # noqa: FBT003 - it does not write


def handle(_request: wire.FetchRequest, _caller: Caller, _services: Services) -> Reply:
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
