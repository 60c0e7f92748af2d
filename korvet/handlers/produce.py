"""Produce (key 0), versions 3-13: appends one record batch to each partition named.

korvet_core.DataPath serves it, from the frame to the response; this decides what the core cannot know: rights,
partitions, transactions, replicas and quotas. Of the requests themselves only those come here that are refused before a
client has logged in, or after its session has ended.

acks 0 gets no response, and a closed connection if something went wrong; acks 1 waits for the append, and acks all
also for the replicas of Redis that `replicas` and `min.insync.replicas` ask for.
Versions up to 12 name topics, version 13 gives ids. zstd may be sent from version 7 on (KIP-110).

The first batch of a transaction in a partition is verified with the coordinator: up to version 11 the producer has
added the partition before, from version 12 on this adds it (KIP-890).

If the store is nearly full the response carries a throttle time, and the connection is then muted for as long; in every
version the response is sent before that, as by Kafka's broker since KIP-219. If the store is full nothing is written,
and the error is KAFKA_STORAGE_ERROR: clients (the Java client and librdkafka among them) know it as one after which
nothing was written, and retry, and it is what Redis' own refusal becomes. Some of them do not know
THROTTLING_QUOTA_EXCEEDED as an answer to Produce. In a cluster this goes for the partitions of a node that is full.

Errors: CORRUPT_MESSAGE, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_RECORD, INVALID_REQUIRED_ACKS,
INVALID_TIMESTAMP, INVALID_TXN_STATE, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER,
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
UNSUPPORTED_COMPRESSION_TYPE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from korvet.errors import ErrorCode, KafkaError, ProtocolError, StorageUnavailableError, partition_code
from korvet.handlers.common import error_message
from korvet.handlers.context import Caller, Services
from korvet.handlers.registry import Reply, register
from korvet.handlers.rights import TOPIC, TRANSACTIONAL_ID, WRITE, on_topics_then_ids, on_transactional_id
from korvet.log.appends import Decision, Question, refused
from korvet.log.partition_finder import PartitionFinder
from korvet.protocol.messages import produce as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import ALL_RIGHTS, Authorizer, refusal
from korvet.security.quotas import Quota
from korvet.security.session import Session
from korvet.topics.types import TopicRef

ABORTABLE_VERSION_FIRST = 11
"""From here on producers know TRANSACTION_ABORTABLE (KIP-890)."""
ADDING_VERSION_FIRST = 12
"""From here on they do not add partitions to their transactions (KIP-890)."""

THROTTLED_BY = ("memory", *Quota)
"""Why a producer is throttled, by the numbers that the core has for it."""


class Client(Protocol):
    """The connection of a client whose requests the core serves."""

    number: int
    session: Session

    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""


class ProduceDecisions:
    """Decides, in one worker, on what the core asks about the requests of its clients."""

    def __init__(
        self,
        services: Services,
        authorizer: Authorizer | None,
        is_late: Callable[[float], bool],
        charge: Callable[[Session, str | None, int, float], tuple[int, Quota]],
    ) -> None:
        """`is_late` says so of a request that came after a time (time.monotonic), and renews an ended lease.

        `charge` counts a request, by bytes and seconds, and returns for how long its client has to wait (ms).
        """
        self._services, self._appends = services, services.appends
        self._authorizer, self._is_late, self._charge = authorizer, is_late, charge
        self._finder = PartitionFinder(services.topics, services.appends)

    def decide(self, client: Client | None, question: Question) -> Decision:
        """Return the decision on one question; raises KafkaError. `client` is None once its connection is gone."""
        word, *about = question
        if word == "in sync":
            return self._in_sync(*about)
        if word == "verify":
            return self._verify(*about)
        if client is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "its connection is gone")
        if word == "late":
            return self._late(client, *about)
        if word == "right":
            return self._right(client, *about)
        ms, quota = self._charge(client.session, *about)
        return ms, THROTTLED_BY.index(quota)

    def find(self, asked: Sequence[tuple[str, bytes | None, int, bool]]) -> list[Decision]:
        """Put partitions for the core, by the name or id of the topic; returns for each whether there is one."""
        return [None if error is None else refused(error) for error in self._finder.find(asked)]

    def confirm(self, asked: Sequence[tuple[int, str, int]]) -> list[Decision]:
        """Return for each node (by number), history and count whether as many replicas have what was written."""
        replicas = self._services.replicas
        wanted = [(replicas.numbered(number).name, history, count) for number, history, count in asked]
        short = KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "the records are written, but too few replicas of Redis have them yet",
        )
        return [None if has else refused(short) for has in replicas.have(wanted)]

    def _in_sync(self, stream: str) -> Decision:
        known = self._services.replicas.check_insync(self._appends.partition_of(stream))
        if known is not None:
            self._appends.core.put_insync(*known)
        return None

    def _late(self, client: Client, came_after: float) -> Decision:
        if self._is_late(came_after) and client.is_gone():
            raise StorageUnavailableError("the request came late, and nobody waits for its answer")
        return None

    def _right(self, client: Client, kind: str, name: str | bytes) -> Decision:
        if name == ZERO_UUID:
            return None  # no topic: the next question says so
        # Before the rights are looked at, for it may wait: what is granted is what holds now.
        named = self._services.topics.resolve(TopicRef("", name)).name if isinstance(name, bytes) else name
        authorizer = self._authorizer
        rights = ALL_RIGHTS if authorizer is None else authorizer.rights(client.session, "Produce")
        rights.check_fresh()
        is_id = kind == "transactional id"
        resource = TRANSACTIONAL_ID if is_id else TOPIC
        if not rights.allows(WRITE, resource, named):
            raise refusal(resource)
        self._appends.core.grant(client.number, True, kind, name)  # noqa: FBT003 - it writes
        return None

    def _verify(
        self, transactional_id: str, version: int, producer_id: int, epoch: int, streams: Sequence[str]
    ) -> int:
        """Return the number of the transaction that partitions are in; raises KafkaError with a code for producers."""
        partitions = [self._appends.partition_of(stream) for stream in streams]
        verify_only = version < ADDING_VERSION_FIRST
        try:
            return self._services.transactions.add_partitions(
                transactional_id, producer_id, epoch, partitions, verify_only=verify_only
            )
        except KafkaError as error:
            code = _code_for_producers(error.code, version)
            if code is error.code:
                raise
            raise KafkaError(code, error.message) from error


def _code_for_producers(code: ErrorCode, version: int) -> ErrorCode:
    """Return what a coordinator's error is for producers: that of Kafka's broker, as far as the version knows it."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code in {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}:
        knows = version >= ABORTABLE_VERSION_FIRST
        return ErrorCode.TRANSACTION_ABORTABLE if knows else ErrorCode.INVALID_TXN_STATE
    concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION_FIRST
    if concurrent or code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        # Producers do not retry them as an answer to Produce; this they do, without asking for metadata again.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def handle(_request: wire.ProduceRequest, _caller: Caller, _services: Services) -> Reply:
    """Raise ProtocolError: a client that may produce is served by the core."""
    raise ProtocolError("a Produce request of a client that has no session")


def _refuse(request: wire.ProduceRequest, _caller: Caller, error: KafkaError) -> wire.ProduceResponse | None:
    """Answer every partition with the error; raises ProtocolError for acks 0, which gets no response."""
    if request.acks == 0:
        raise ProtocolError(f"a produce request with acks 0 failed: {error}")
    code, message = partition_code(error), error_message(error)
    responses = [
        wire.TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id or ZERO_UUID,
            partition_responses=[
                wire.PartitionProduceResponse(
                    index=partition.index, error_code=code, base_offset=-1, error_message=message
                )
                for partition in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return wire.ProduceResponse(responses=responses)


register(
    handle,
    _refuse,
    rights=[on_transactional_id(), *on_topics_then_ids(WRITE, "topic_data", "responses", ids_since=13)],
)
