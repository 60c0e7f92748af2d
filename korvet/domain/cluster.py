"""The cluster as clients are told of it: this broker, its address, the controller.

Knows one broker; nothing of Redis or sockets. Every broker serves every partition, so a leader is advice for load.
"""

from __future__ import annotations

import msgspec

LEADER_EPOCH = 0
"""Of every partition: leadership does not move, since no broker holds anything (KIP-320 fences by this number)."""


class BrokerAddress(msgspec.Struct, frozen=True):
    """A live broker: its id, and the host and port that clients are to use."""

    broker_id: int
    host: str
    port: int


class Cluster(msgspec.Struct, frozen=True):
    """The cluster: its id and its live brokers, of which the first is the controller."""

    cluster_id: str
    this: BrokerAddress

    @property
    def brokers(self) -> list[BrokerAddress]:
        """Every live broker."""
        return [self.this]

    @property
    def controller_id(self) -> int:
        """The id of the broker that clients send administration to; any broker would do."""
        return self.this.broker_id

    def leader(self, _topic: str, _partition: int) -> int:
        """Return the id of the broker that clients are to use for a partition."""
        return self.this.broker_id
