"""ElectLeaders (key 43), versions 0-2: elects preferred leaders, or any (KIP-183, KIP-460).

The first live broker of a partition's assignment always leads it, without an election; the response says for
each partition what this means. If all partitions are asked for (null), the response has every topic, without the
partitions that need no election, as in Kafka. Of the timeout it counts only that there is one.

Errors: ELECTION_NOT_NEEDED, INVALID_REQUEST, PREFERRED_LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT,
UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from korvet.cluster.brokers import LiveBrokers
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields, require_time
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import elect_leaders as wire
from korvet.protocol.types import ElectionType
from korvet.topics.placement import election_outcome
from korvet.topics.registry import Topic

ERROR_VERSION_FIRST = 1


def handle(
    request: wire.ElectLeadersRequest, _caller: Caller, services: Services
) -> wire.ElectLeadersResponse:
    require_time(request.timeout_ms)
    if request.topic_partitions != [] and request.election_type not in tuple(ElectionType):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"election type {request.election_type} is unknown")
    unclean = request.election_type == ElectionType.UNCLEAN
    live = services.cluster.refresh()
    services.topics.refresh()
    if request.topic_partitions is None:
        results = []
        for topic in services.topics.list_cached():
            outcomes = _outcomes(topic, live, unclean=unclean)
            needed = [
                index
                for index, outcome in outcomes.items()
                if outcome.code is not ErrorCode.ELECTION_NOT_NEEDED
            ]
            results.append(_result(topic.name, needed, outcomes))
        return wire.ElectLeadersResponse(replica_election_results=results)

    @cache  # a few bytes of a request name a topic again, and it may have very many partitions
    def outcomes_of(name: str) -> dict[int, KafkaError]:
        topic = services.topics.get_cached(name)
        return {} if topic is None else _outcomes(topic, live, unclean=unclean)

    return wire.ElectLeadersResponse(
        replica_election_results=[
            _result(topic.topic, topic.partitions, outcomes_of(topic.topic))
            for topic in request.topic_partitions
        ]
    )


def _refuse(
    request: wire.ElectLeadersRequest, caller: Caller, error: KafkaError
) -> wire.ElectLeadersResponse:
    results = [
        _result(topic.topic, topic.partitions, dict.fromkeys(topic.partitions, error))
        for topic in request.topic_partitions or ()
    ]
    # KIP-460: version 0 has no top-level error.
    code = error.code if caller.version >= ERROR_VERSION_FIRST else ErrorCode.NONE
    return wire.ElectLeadersResponse(error_code=code, replica_election_results=results)


def _outcomes(topic: Topic, live: LiveBrokers, *, unclean: bool) -> dict[int, KafkaError]:
    placements = live.placed(topic.name, len(topic.partitions), topic.assignment)
    return {index: election_outcome(placed, unclean=unclean) for index, placed in enumerate(placements)}


def _result(
    name: str, indexes: Iterable[int], outcomes: Mapping[int, KafkaError]
) -> wire.ReplicaElectionResult:
    results = []
    for index in indexes:
        missing = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        results.append(wire.PartitionResult(partition_id=index, **error_fields(outcomes.get(index, missing))))
    return wire.ReplicaElectionResult(topic=name, partition_result=results)


register(
    handle,
    _refuse,
    rights=[on_cluster(ALTER)],
    changes=lambda _request, response: (
        (f"{topic.topic}:{partition.partition_id}", partition.error_code)
        for topic in response.replica_election_results
        for partition in topic.partition_result
    ),
)
