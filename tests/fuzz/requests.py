"""Requests from their declarations, and what a hostile peer makes of them; all from one random number generator.

Most values are such as a client would send: of topics, groups and members that exist, and what earlier responses held
in fields of the same name. The others are the edges of their types. A lie replaces a length or count where it stands,
the elements stay; damage changes bytes anywhere.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from korvet.protocol.messages import all_messages
from korvet.protocol.schema import Field, ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized
from tests.fuzz.records import any_records
from tests.protocol import reference
from tests.protocol.samples import RANGES, versions

FORMATS = ("record", "batch")
TOPICS: Mapping[str, Mapping[str, str]] = {
    f"{name}-{storage_format}": {"storage.format": storage_format, **configs}
    for storage_format in FORMATS
    for name, configs in {
        "plain": {},
        "compact": {"cleanup.policy": "compact"},
        "stamped": {"message.timestamp.type": "LogAppendTime"},
        "packed": {"compression.type": "lz4", "storage.compression": "zstd"},
    }.items()
}
"""The topics that requests are about, with their configs."""

REQUESTS = [(cls, version) for cls in all_messages() if cls.is_request() for version in versions(cls)]
"""Every version of every API."""

_NAMES = (*TOPICS, *TOPICS, "made", "absent", "..", "", "a" * 249, "a" * 250)
_TEXTS = ("", "x", "range", "\0", "\u20ac\U0001f600", "x" * 300, "x" * 32767)
_GROUPS = (*(f"group-{number}" for number in range(12)), "", "\u20ac")
_CONFIGS = {
    "cleanup.policy": ("compact", "delete", "compact,delete"),
    "compression.type": ("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"),
    "max.message.bytes": ("100", "1048588"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "message.timestamp.after.max.ms": ("3600000", "9223372036854775807"),
    "retention.ms": ("-1", "1000"),
    "retention.bytes": ("-1", "1000"),
    "storage.format": FORMATS,
    "storage.compression": ("none", "lz4", "zstd"),
    "min.compaction.lag.ms": ("0",),
    "absent": ("x",),
}
_STRINGS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("name", "topic", "topic_name", "topic_names", "resource_name"), _NAMES),
    **dict.fromkeys(("group_id", "groups", "groups_names", "key", "coordinator_keys"), _GROUPS),
    "configuration_keys": tuple(_CONFIGS),
    "value": tuple(value for values in _CONFIGS.values() for value in values),
    "protocol_type": ("consumer",),
    "protocol_name": ("range",),
    "states_filter": ("Stable", "Empty", "Dead"),
    "types_filter": ("classic", "consumer"),
    "transactional_id": ("t",),
    "member_id": ("", "absent"),
    "group_instance_id": ("static-1", "static-2"),
    "committed_metadata": ("", "m"),
}
_NULL_MOSTLY = ("transactional_id", "group_instance_id")
_PARTITIONS = (0, 0, 0, 1, 2, 3, -1, 2**31 - 1)
_COUNTS = (1, 2, 3, 4, 0, -1, 20, 2**31 - 1)
_OFFSETS = (0, 0, 1, 5, 100, -1, -2, 2**62, 2**63 - 1)
_EPOCHS = (-1, -1, 0, 1, 2**31 - 1)
_NUMBERS: dict[str, Sequence[int]] = {
    **dict.fromkeys(
        ("index", "partition", "partition_index", "partition_indexes", "partitions"), _PARTITIONS
    ),
    **dict.fromkeys(("num_partitions", "count"), _COUNTS),
    **dict.fromkeys(("committed_offset", "fetch_offset", "offset"), _OFFSETS),
    **dict.fromkeys(("committed_leader_epoch", "current_leader_epoch", "last_fetched_epoch"), _EPOCHS),
    **dict.fromkeys(("leader_epoch", "member_epoch", "session_epoch"), _EPOCHS),
    **dict.fromkeys(("broker_ids", "replicas", "replica_id"), (-1, 0, 0, 1)),
    **dict.fromkeys(("session_timeout_ms", "rebalance_timeout_ms"), (50, 100, 500, 0, -1, 2**31 - 1)),
    **dict.fromkeys(("generation_id", "generation_id_or_member_epoch"), (-1, 0, 1, 2)),
    "producer_epoch": (-1, -1, 0, 1, 2**15 - 1),
    "acks": (-1, -1, 1, 0, 2),
    "timeout_ms": (1000, 1000, 0, -1, 2**31 - 1),
    "max_wait_ms": (0, 0, 10, 100, -1),
    "min_bytes": (0, 1, 1, 2**31 - 1),
    "max_bytes": (2**20, 2**31 - 1, 0, 1, -1),
    "partition_max_bytes": (2**20, 2**31 - 1, 0, 1, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1_600_000_000_000, 2**63 - 1),
    "resource_type": (2, 2, 4, 8, 0),
    "config_operation": (0, 1, 2, 3, 4),
    "replication_factor": (-1, 1, 2),
    "response_partition_limit": (1, 2000, -1, 2**31 - 1),
    "retention_time_ms": (-1, 0),
}
_LIES = (-(2**31), -2, -1, 0, 1, 127, 128, 32767, 65535, 2**31 - 1)
_EDGES = (
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\xff" * 9,
)


class Learned:
    """What responses held that later requests may hold: by the name of the field, the newest few."""

    FIELDS = ("member_id", "topic_id", "producer_id", "generation_id", "session_id")

    def __init__(self) -> None:
        self.hidden: set[Any] = {None}
        """What is never learned: nothing, and the ids of topics that requests are not to touch."""
        self._values: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=16))

    def values(self, name: str) -> Sequence[Any]:
        """Return what a field of that name may hold."""
        return self._values[name] if name in self.FIELDS else ()

    def learn(self, part: Part) -> None:
        """Take what is of use out of a response."""
        for row in fields(type(part)):
            value = getattr(part, row.name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Part):
                    self.learn(item)
                elif (
                    row.name in self.FIELDS and item not in self.hidden and item not in self._values[row.name]
                ):
                    self._values[row.name].append(item)


def damaged(rng: Random, content: bytes) -> bytes:
    """Return bytes with a few of them replaced, taken out, put in or repeated, or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(data))
        match rng.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                edge = rng.choice(_EDGES)
                data[at : at + len(edge) * rng.randint(0, 1)] = edge
            case 3:
                del data[at : at + rng.randint(1, 8)]
            case _:
                data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 4)
    return bytes(data)


class _Lying(reference.Plain):
    """Encodes, but for a length now and then that is not so."""

    def __init__(self, rng: Random, version: int, *, flexible: bool) -> None:
        super().__init__(version, flexible=flexible, unknown_tags=rng.random() < 0.1)
        self._rng = rng
        self._rate = rng.choice((0.02, 0.1, 0.5))

    def length(self, value: Any, code: str) -> bytes:
        if self._rng.random() >= self._rate:
            return super().length(value, code)
        true = 0 if value is None else len(value)
        lie = self._rng.choice((*_LIES, true - 1, true + 1, 2 * true))
        if self.flexible:
            return self._rng.choice(
                (reference.varint(lie + 1 & 0xFFFFFFFF), b"\xff" * 5, b"\x80" * 9 + b"\1")
            )
        low, high = RANGES[code]
        return struct.pack(">" + code, min(max(lie, low), high))


def lying(rng: Random, message: Message, version: int) -> bytes:
    """Encode a message, some of whose lengths and counts lie."""
    return _Lying(rng, version, flexible=message.api.is_flexible(version)).part(message)


class Requests:
    """Makes requests for a broker with TOPICS; `large`: the next array has as many elements, but not of records."""

    def __init__(self, rng: Random, learned: Learned, large: int = 0) -> None:
        self._rng = rng
        self._large = large
        self._learned = learned
        self._learning = rng.random() < 0.8
        """Whether values of this case are such as a broker knows."""

    def any(self, cls: type[Message], version: int) -> Message:
        """Return any `cls` that `version` can carry."""
        message: Message = self._part(cls, version)
        return message

    def _part(self, cls: type[Part], version: int) -> Any:
        # A config and its value belong together, or hardly any would be accepted.
        values = {row.name: self._field(row, version) for row in fields(cls) if row.present(version)}
        if {"name", "value"} <= values.keys():
            values["name"] = self._rng.choice(tuple(_CONFIGS))
            values["value"] = self._rng.choice((*_CONFIGS[values["name"]], values["value"]))
        return cls(**values)

    def _field(self, row: Field, version: int) -> Any:
        rng = self._rng
        may_be_null = row.nullable(version) or (isinstance(row.kind, PartOf) and row.validity.tag is not None)
        if may_be_null and rng.random() < (0.9 if row.name in _NULL_MOSTLY else 0.15):
            return None
        return self._value(row.kind, row.name, version)

    def _value(self, kind: WireType, name: str, version: int) -> Any:
        rng = self._rng
        if isinstance(kind, PartOf):
            return self._part(kind.cls, version)
        if isinstance(kind, ListOf):
            count = rng.choice((0, 1, 1, 1, 2, 3, 12))
            if self._large and name != "topic_data":
                count, self._large = self._large, 0
            return [self._value(kind.element, name, version) for _ in range(count)]
        likely = rng.random() < 0.9 and self._learning
        known = self._learned.values(name)
        if known and likely and rng.random() < 0.7:
            return rng.choice(known)
        if isinstance(kind, Sized):
            if kind.kind == "string":
                return rng.choice(_STRINGS.get(name, _TEXTS) if likely else _TEXTS)
            return any_records(rng) if name == "records" else rng.randbytes(rng.choice((0, 1, 20, 2000)))
        return self._fixed(kind, _NUMBERS.get(name) if likely else None)

    def _fixed(self, kind: Fixed, likely: Sequence[int] | None) -> Any:
        rng = self._rng
        if likely:
            return rng.choice(likely)
        if kind.code == "?":
            return rng.random() < 0.5
        if kind.code == "16s":
            return rng.choice((ZERO_UUID, rng.randbytes(16)))
        if kind.code == "d":
            return rng.choice((0.0, -1.0, 0.5, 1e300, math.inf, rng.random()))
        low, high = RANGES[kind.code]
        return rng.choice((low, high, 0, 1, max(low, -1), rng.randint(low, high)))
