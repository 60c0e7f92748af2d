"""WriteTxnMarkers (key 27), versions 1-2, flexible from 1. Markers that end transactions in partitions (KIP-98).

In Kafka coordinators send it to leaders, and administrators to abort a hanging transaction (KIP-664). Version 0 is gone
since Kafka 4.0. 2 says by which protocol of transactions a marker was made (KIP-1228).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.parts import TopicErrors
from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Part, kw_only=True):
    name: string
    partition_indexes: list[int32]


class WritableTxnMarker(Part, kw_only=True):
    """One marker for many partitions; transaction_result is true for a commit and false for an abort."""

    producer_id: int64
    producer_epoch: int16
    transaction_result: boolean
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: int32
    transaction_version: Annotated[int8, since(2, ignorable=True)] = 0


class WriteTxnMarkersRequest(Message, kw_only=True):
    api = Api(key=27, versions=(1, 2), flexible=1)

    markers: list[WritableTxnMarker]


class WritableTxnMarkerResult(Part, kw_only=True):
    producer_id: int64
    topics: list[TopicErrors]


class WriteTxnMarkersResponse(Message, kw_only=True):
    """The result for every partition of every marker; there is no error of the whole, and no throttle time."""

    markers: list[WritableTxnMarkerResult] = []
