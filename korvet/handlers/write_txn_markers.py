"""WriteTxnMarkers (key 27), versions 1-2: ends transactions in partitions (KIP-98), whatever their coordinator says.

Korvet's coordinators do not send it. An administrator does, to abort a transaction that hangs (KIP-664). Its number
cannot be given, so a marker ends the one that the producer has open in the partition. Without one nothing is written,
and that is no error. A marker of the second protocol (KIP-890) has a later epoch than its transaction, and version 2
says that it is one: a late one does not end the next transaction, which has its epoch (KIP-1228).

Errors: INVALID_PRODUCER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import ErrorCode, partition_code
from korvet.handlers.audit import partitions_changed
from korvet.handlers.common import topic_errors
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER, CLUSTER, CLUSTER_ACTION, by_handler
from korvet.log.appends import OPEN_BEFORE, THE_OPEN_ONE, Marker
from korvet.protocol.messages import write_txn_markers as wire
from korvet.security.authorizer import refusal
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef

_WITH_LATER_EPOCH = 2
"""The first transaction.version whose markers have a later epoch than their transactions."""


def handle(
    request: wire.WriteTxnMarkersRequest, caller: Caller, services: Services
) -> wire.WriteTxnMarkersResponse:
    """Write each marker to each of its partitions; the failure of one leaves the others unaffected."""
    # As in Kafka an administrator may, and a broker.
    administers = caller.rights.allows_cluster(ALTER, log=False)
    if not administers and not caller.rights.allows_cluster(CLUSTER_ACTION):
        raise refusal(CLUSTER)
    refs = [
        PartitionRef(TopicRef(topic.name), index, marker)
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    answers = services.topics.ask(refs, _marker, services.markers.write)
    codes = (ErrorCode.NONE if answer is None else partition_code(answer) for answer in answers)
    return _response(request, codes)


def _marker(asked: wire.WritableTxnMarker, _topic: Topic, partition: Partition) -> Marker:
    number = OPEN_BEFORE if asked.transaction_version >= _WITH_LATER_EPOCH else THE_OPEN_ONE
    return Marker(partition, asked.producer_id, asked.producer_epoch, number, commit=asked.transaction_result)


def _response(
    request: wire.WriteTxnMarkersRequest, codes: Iterator[ErrorCode]
) -> wire.WriteTxnMarkersResponse:
    markers = [
        wire.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=topic_errors(((topic.name, topic.partition_indexes) for topic in marker.topics), codes),
        )
        for marker in request.markers
    ]
    return wire.WriteTxnMarkersResponse(markers=markers)


def _changes(
    request: wire.WriteTxnMarkersRequest, response: wire.WriteTxnMarkersResponse
) -> Iterator[Outcome]:
    for asked, marker in zip(request.markers, response.markers, strict=True):
        prefix = f"{'commit' if asked.transaction_result else 'abort'} of producer {marker.producer_id} in "
        yield from partitions_changed(marker.topics, prefix)


register(
    handle,
    lambda request, _caller, error: _response(request, repeat(partition_code(error))),
    rights=[by_handler((ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER))],
    changes=_changes,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
