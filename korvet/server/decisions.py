"""What a worker decides on for the core, which serves Produce and Fetch: rights, partitions, replicas and quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers.rights import CLUSTER_ACTION, READ, TOPIC, TRANSACTIONAL_ID, WRITE
from korvet.log.appends import Decision, Question, refused
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import ALL_RIGHTS, Authorizer, Rights, refusal
from korvet.security.quotas import Quota
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.throttle import THROTTLED_BY
from korvet.topics.types import TopicRef
from korvet.transactions.types import ProducerIdentity
from korvet.turns import in_turns

ABORTABLE_VERSION_FIRST = 11
"""From here on producers know TRANSACTION_ABORTABLE (KIP-890)."""
ADDING_VERSION_FIRST = 12
"""From here on they do not add partitions to their transactions (KIP-890)."""


class ProduceDecisions:
    """Decides, in one worker, on what the core asks about the requests of its producers."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        services = dispatcher.services
        self._services, self._appends = services, services.appends
        self._lease, self._throttle = dispatcher.lease, dispatcher.throttle

    def decide(self, client: ClientConnection | None, question: Question) -> Decision:
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
        ms, quota = self._throttle.charge_served(Quota.PRODUCER_BYTE_RATE, client.session, *about)
        return ms, THROTTLED_BY.index(quota)

    def find(self, asked: Sequence[tuple[str, bytes | None, int, bool]]) -> list[Decision]:
        """Put partitions for the core, by the name or id of the topic; returns for each whether there is one."""
        return [
            None if error is None else refused(error)
            for error in self._appends.find(self._services.topics, asked)
        ]

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

    def _late(self, client: ClientConnection, came_after: float) -> Decision:
        if self._lease.is_late(came_after) and client.is_gone():
            raise StorageUnavailableError("the request came late, and nobody waits for its answer")
        return None

    def _right(self, client: ClientConnection, kind: str, name: str | bytes) -> Decision:
        if name == ZERO_UUID:
            return None  # no topic: the next question says so
        # Before the rights are looked at, for it may wait: what is granted is what holds now.
        named = self._services.topics.resolve(TopicRef("", name)).name if isinstance(name, bytes) else name
        resource = TRANSACTIONAL_ID if kind == "transactional id" else TOPIC
        if not _rights(self._services.authorizer, client, "Produce").allows(WRITE, resource, named):
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
            by = ProducerIdentity(producer_id, epoch)
            return self._services.transactions.add(transactional_id, by, partitions, verify_only=verify_only)
        except KafkaError as error:
            code = _code_for_producers(error.code, version)
            if code is error.code:
                raise
            raise KafkaError(code, error.message) from error


class FetchDecisions:
    """Decides, in one worker, on what the core asks about the requests of its consumers."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        services = dispatcher.services
        self._services, self._throttle = services, dispatcher.throttle

    def decide(
        self, client: ClientConnection | None, word: str, asked: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Return the decisions on questions of one kind, a KafkaError for what is refused.

        `client` is None once its connection is gone. Redis is asked once or twice what topics there are, however many
        are not known.
        """
        if word == "topic":
            return self._services.appends.find(self._services.topics, asked)
        # Before the rights are looked at, for it may wait: what is granted is what holds now.
        ids = (TopicRef("", about[1]) for about in asked if word == "right" and isinstance(about[1], bytes))
        outage = self._services.topics.refresh_for((ref, 0) for ref in ids)
        decisions: list[Any] = []
        for about in in_turns(asked):
            try:
                decisions.append(self._decide(client, word, about, outage))
            except KafkaError as error:
                decisions.append(error.without_frames())
        return decisions

    def _decide(
        self, client: ClientConnection | None, word: str, about: tuple[Any, ...], outage: KafkaError | None
    ) -> Any:  # noqa: ANN401 - as ClientDecisions has it
        if client is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "its connection is gone")
        if word == "right":
            kind, name = about
            return self._right(client, kind, name, outage)
        if word == "limit":
            most = self._throttle.fetch_limit(client.session, *about)
            return INT32_MAX if most is None else most
        ms, quota = self._throttle.charge_served(Quota.CONSUMER_BYTE_RATE, client.session, *about)
        return "throttle", ms, THROTTLED_BY.index(quota)

    def _right(
        self, client: ClientConnection, kind: str, name: str | bytes, outage: KafkaError | None
    ) -> None:
        topics = self._services.topics
        named = topics.known(TopicRef("", name), outage).name if isinstance(name, bytes) else name
        rights = _rights(self._services.authorizer, client, "Fetch")
        is_allowed = (
            rights.allows_cluster(CLUSTER_ACTION) if kind == "cluster" else rights.allows(READ, TOPIC, named)
        )
        if not is_allowed:
            raise refusal(TOPIC)
        self._services.appends.core.grant(client.number, False, kind, name)  # noqa: FBT003 - it does not write


def _rights(authorizer: Authorizer | None, client: ClientConnection, api: str) -> Rights:
    """Return the rights of a client; raises StorageUnavailableError if they are not known any more."""
    rights = ALL_RIGHTS if authorizer is None else authorizer.rights(client.session, api)
    rights.check_fresh()
    return rights


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
