"""Names for what differs by nature in two answers that mean the same: times, ids, ports, producer ids, epochs."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Sequence
from typing import Any

import cramjam
from aiokafka.record.memory_records import MemoryRecords

from korvet.errors import ErrorCode

_TIME = re.compile(r"Timestamp|TimeMs|TimeoutMs$")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BASE64_UUID = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_EPOCH_MIN = 1_000_000
"""Korvet's leader epochs begin at a time, Kafka's at 0."""
_TIME_MIN = 10**11
HIDDEN = "<hidden>"
"""What does not count in an answer, but for -1 and null."""


class Names:
    """Names of one broker's ids, ports and producer ids, in the order in which they came."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.uuids = {uuid.UUID(int=0): "<no id>"}
        self._ports = ports
        self._producers: dict[int, str] = {-1: "-1"}

    def stable(self, value: Any, hide: Sequence[str] = (), name: str = "") -> Any:
        """Return a decoded answer with names in place of what differs by nature; every other leaf becomes a text."""
        if name in hide and value is not None and (not isinstance(value, int) or value >= 0):
            return HIDDEN
        if isinstance(value, dict):
            return {key: self.stable(part, hide, key) for key, part in value.items()}
        if isinstance(value, list):
            return [self.stable(part, hide, name) for part in value]
        if isinstance(value, bytes) and name == "Records":
            return self.stable(batches(value))
        return self._leaf(value, name)

    def _leaf(self, value: Any, name: str) -> str:
        if value is None or isinstance(value, bool | float):
            return "null" if value is None else str(value).lower()
        if isinstance(value, bytes):
            return repr(value)[:120]
        if isinstance(value, uuid.UUID):
            return self.uuids.get(value, "<uuid>")
        return self._number(value, name) if isinstance(value, int) else self._text(value, name)

    def _number(self, value: int, name: str) -> str:
        if name.endswith("ErrorCode"):
            return ErrorCode(value).name if value in set(ErrorCode) else str(value)
        if name == "ProducerId":
            return self._producers.setdefault(value, f"<producer {len(self._producers)}>")
        if name == "Port" and value in self._ports:
            return "<port>"
        if name.endswith("LeaderEpoch") and (value == 0 or value > _EPOCH_MIN):
            return "<leader epoch>"
        return "<time>" if _TIME.search(name) and value > _TIME_MIN else str(value)

    def _text(self, value: str, name: str) -> str:
        if name == "ClusterId":
            return "<cluster>"
        for port in self._ports:
            value = value.replace(str(port), "<port>")
        return _BASE64_UUID.sub("<uuid>", _UUID.sub("<uuid>", value))


def batches(data: bytes) -> list[dict[str, Any]]:
    """Return headers and records of the batches in what a fetch answered."""
    decoded = []
    while len(data) >= _BATCH_HEADER.size:
        base, length, epoch, magic, _, attributes, delta, _, _, producer, producer_epoch, sequence, count = (
            _BATCH_HEADER.unpack_from(data)
        )
        decoded.append(
            {
                "BaseOffset": base,
                "PartitionLeaderEpoch": epoch,
                "Magic": magic,
                "Attributes": attributes,
                "LastOffsetDelta": delta,
                "ProducerId": producer,
                "ProducerEpoch": producer_epoch,
                "BaseSequence": sequence,
                "Count": count,
                "Records": _records(data[: 12 + length]),
            }
        )
        data = data[12 + length :]
    return decoded


def _records(data: bytes) -> str:
    batch = MemoryRecords(data).next_batch()
    if batch is None:
        return "a part of a batch"
    try:
        good = batch.validate_crc()
        records = [(record.offset, record.key, record.value, record.headers) for record in batch]
    except (ValueError, TypeError, struct.error, IndexError, cramjam.DecompressionError) as error:
        return f"cannot be read: {error!r}"
    return f"{records}" if good else f"wrong CRC: {records}"
