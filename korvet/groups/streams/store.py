"""Streams groups in Redis (KIP-1071): members as those of the consumer protocol, and what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import msgspec

from korvet.errors import KafkaError, or_raise
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.schedule import Schedule
from korvet.groups.streams.types import StreamsTopology
from korvet.groups.types import GROUPS_AT_ONCE, STREAMS
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import parsed
from korvet.turns import in_parts

_BEGIN = scripts.get("streams/begin")
_RAISE_ENDPOINTS = scripts.get("streams/raise_endpoints")

_FIELDS = ("topology", "delayed_until", "ends_by", "endpoints")

_TOPOLOGIES_MAX = 256
"""Topologies that a worker caches: each full request of a member reads one."""


@lru_cache(_TOPOLOGIES_MAX)
def _topology(text: bytes) -> StreamsTopology:
    """Return the topology in a field; raises ValueError."""
    try:
        return msgspec.json.decode(text, type=StreamsTopology)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


class Common(NamedTuple):
    """What the members of a group have in common.

    `delayed_until_ms` is when the first target may be computed, `ends_by` the member that asks all to end, and
    `endpoints` rises whenever the tasks of a member with an endpoint change.
    """

    topology: StreamsTopology | None
    delayed_until_ms: int
    ends_by: str
    endpoints: int


def _common(reply: list[bytes | None]) -> Common:
    topology, delayed_until, ends_by, endpoints = reply
    return Common(
        topology=None if topology is None else _topology(topology),
        delayed_until_ms=int(delayed_until or 0),
        ends_by=(ends_by or b"").decode(),
        endpoints=int(endpoints or 0),
    )


class StreamsStore(ConsumerStore):
    """The streams groups of one namespace. Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, redis: Redis, keys: Keys, schedule: Schedule) -> None:
        super().__init__(redis, keys, schedule, STREAMS)

    def common(self, group: str) -> Common:
        return or_raise(*self.commons([group]))

    def commons(self, groups: Sequence[str]) -> list[Common | KafkaError]:
        """Return for each group what its members have in common, or KAFKA_STORAGE_ERROR."""
        commons: list[Common | KafkaError] = []
        for part in in_parts(groups, GROUPS_AT_ONCE) if groups else ():
            keys = [self._keys.group_state(group) for group in part]
            replies = self._redis.pipeline([("HMGET", key, *_FIELDS) for key in keys])
            commons += [
                parsed(key, "the topology", reply, _common) for key, reply in zip(keys, replies, strict=True)
            ]
        return commons

    def begin(
        self,
        group: str,
        topology: StreamsTopology | None = None,
        delay_ms: int | None = None,
        ends_by: str = "",
    ) -> None:
        """Begin a new epoch of the group, and note what its members have in common (lua/streams/begin.lua)."""
        text = b"" if topology is None else msgspec.json.encode(topology)
        self._run(_BEGIN, group, [text, "" if delay_ms is None else delay_ms, ends_by])

    def raise_endpoints(self, group: str) -> int:
        """Take note that a member with an endpoint has other tasks; returns the new epoch of the endpoints.

        0: there is no such group any more.
        """
        return cast("int", self._redis.script(_RAISE_ENDPOINTS, [self._keys.group_state(group)], []))
