"""Control batches: the markers that end a transaction in a partition (KIP-98).

Source: the Kafka documentation, "Control Batches", and EndTransactionMarker.json of Apache Kafka. A marker is a batch
of one record. Its key says whether the transaction was committed or aborted; its value carries the epoch of the
coordinator, which Korvet does not have.
"""

from __future__ import annotations

import struct

from korvet.protocol.records.record import Header

ABORT, COMMIT = 0, 1
"""The types of control records that end a transaction."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = _COORDINATOR_EPOCH = 0


def control_record(
    commit: bool,  # noqa: FBT001 - what it is of
    timestamp_ms: int,
    offset: int = 0,
) -> tuple[int, int, bytes, bytes, list[Header]]:
    """Return the one record of a marker, a StoredRecord."""
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    return offset, timestamp_ms, key, _VALUE.pack(_VERSION, _COORDINATOR_EPOCH), []
