"""The nodes to which one change goes: what has to be known of them before, and who is to confirm it after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from korvet.errors import StorageUnavailableError

if TYPE_CHECKING:
    from korvet.redis.client import Redis, RedisNode


class WriteWatch:
    """The nodes to which one change goes, each looked at before: `Redis.before_writes`."""

    def __init__(self, look: Callable[[RedisNode], object]) -> None:
        self.look = look
        self._announced: dict[RedisNode, str] = {}
        self._sent: dict[Redis, list[tuple[int, str]]] = {}

    def announced(self, node: RedisNode) -> None:
        """Look at a node to which commands are about to be sent; raises StorageUnavailableError."""
        self.look(node)
        # Not the history of a connection that is lost: the commands would go to another one.
        self._announced.setdefault(node, node.connect())

    def sent_over(self, redis: Redis) -> list[tuple[int, str]]:
        """Return the list that gets the numbers and histories of the nodes to which a client sends scripts."""
        return self._sent.setdefault(redis, [])

    def sent(self) -> set[tuple[str, str]]:
        """Return names and histories of the nodes to which anything was sent."""
        histories = {(node.name, history) for node, history in self._announced.items()}
        for redis, nodes in self._sent.items():
            histories.update((redis.node_numbered(number).name, history) for number, history in nodes)
        return histories

    def refresh_histories(self) -> None:
        """Learn the histories again over the connections that were used: a master begins one with its first replica."""
        nodes = set(self._announced)
        for redis, sent in self._sent.items():
            nodes.update(redis.node_numbered(number) for number, _ in sent)
        for node in nodes:
            with contextlib.suppress(StorageUnavailableError):
                node.refresh_history()
