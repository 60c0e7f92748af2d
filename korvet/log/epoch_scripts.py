"""Scripts that write to logs: each carries the leader epoch of its node, and goes only to the history that has it.

A script that was refused (a later epoch has begun, or its slot is at another node or moving) did not run, and one that
met another history was not sent: it is sent again, with the epoch of that node. Appends are scripts of korvet_core,
which does the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError, OutcomeUnknownError, StorageUnavailableError
from korvet.log.epochs import LeaderEpochs, later_epoch
from korvet.pending import Pending
from korvet.redis.client import HistoryChangedError, Redis, RedisNode, ScriptCall
from korvet.redis.replies import Reply, is_elsewhere

EPOCH_AT = 1
"""Where the leader epoch stands in the arguments of a script that carries it."""

_HISTORIES_MAX = 3
"""Tries to send scripts to the history whose epoch they carry: each but the first has met another one."""

_IS_CONNECTED = attrgetter("connected")


class _NodeScripts(NamedTuple):
    """Scripts sent to a node, and their places in the caller's list."""

    places: Sequence[int]
    node: RedisNode
    replies: Pending[list[Reply]]


def run_in_epoch(redis: Redis, epochs: LeaderEpochs, calls: Sequence[ScriptCall]) -> list[Reply]:
    """Run scripts and return their replies in the order of the calls; what prevents one stands for its reply.

    Where the arguments of one are a list, that at EPOCH_AT becomes the epoch.
    """
    scripts = _EpochScripts(redis, epochs, calls)
    scripts.run()
    return scripts.replies


class _EpochScripts:
    """Scripts under way."""

    def __init__(self, redis: Redis, epochs: LeaderEpochs, calls: Sequence[ScriptCall]) -> None:
        self._redis, self._epochs, self._calls = redis, epochs, calls
        self.replies: list[Reply] = [None] * len(calls)
        self._nodes: dict[int, RedisNode] = {}

    def run(self) -> None:
        """Send them, and again those that were not run."""
        deadline = time.monotonic() + self._redis.timeout_s
        self._send(range(len(self._calls)))
        stale, moved, unsent = self._not_run()
        attempt = 0
        tries_left = _HISTORIES_MAX - 1
        while (stale or moved or unsent) and time.monotonic() < deadline:
            # Nothing was written: once more, with the epoch that there is now.
            for place in stale:
                self._learn(place)
            if moved:
                self._redis.follow([self.replies[place] for place in moved], attempt)
                attempt += 1
            self._redis.order.change()
            self._send(sorted(stale + moved + unsent))
            tries_left -= 1
            _, moved, unsent = self._not_run()
            # A second time another worker is ahead of this one: its client may try again.
            stale, unsent = [], unsent if tries_left > 0 else []

    def _not_run(self) -> tuple[list[int], list[int], list[int]]:
        """Return the scripts that met a later leader epoch than this worker's, a moved slot, or another history."""
        stale, moved, unsent = list[int](), list[int](), list[int]()
        for place, reply in enumerate(self.replies):
            if isinstance(reply, KafkaError) and reply.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                stale.append(place)
            elif is_elsewhere(reply):
                moved.append(place)
            elif isinstance(reply, HistoryChangedError):
                unsent.append(place)
        return stale, moved, unsent

    def _learn(self, place: int) -> None:
        node, last = self._nodes[place], later_epoch(cast("KafkaError", self.replies[place]))
        with contextlib.suppress(KafkaError):
            if last > self._epochs.known(node):
                self._epochs.refresh(node, last)

    def _send(self, places: Sequence[int]) -> None:
        by_node: dict[RedisNode, list[int]] = {}
        for place in places:
            try:
                node = self._redis.node_of(self._calls[place][1][0])
            except StorageUnavailableError as error:
                self._fail((place,), error)
            else:
                by_node.setdefault(node, []).append(place)
        under_way = []
        # First nodes that need not be connected to: one that hangs must not hold up the others.
        for node in sorted(by_node, key=_IS_CONNECTED, reverse=True):
            try:
                under_way.append(self._sent(node, by_node[node]))
            except KafkaError as error:
                self._fail(by_node[node], error)
        for sent in under_way:
            try:
                replies = sent.replies.result()
            except KafkaError as error:
                self._fail(sent.places, error)
                continue
            for place, reply in zip(sent.places, replies, strict=True):
                self.replies[place], self._nodes[place] = reply, sent.node

    def _sent(self, node: RedisNode, places: Sequence[int]) -> _NodeScripts:
        """Send scripts to a node, with the epoch of the history that is to run them: another may have lost records.

        Raises KafkaError if nothing was sent; that the connection leads to another history by then is a reply.
        """
        try:
            epoch = self._epochs.of(node)
        except OutcomeUnknownError as error:
            raise StorageUnavailableError(error.message) from error  # of these scripts nothing was sent
        calls = [self._calls[place] for place in places]
        for _, _, args in calls:
            if isinstance(args, list):
                args[EPOCH_AT] = epoch
        return _NodeScripts(places, node, node.begin_scripts(calls, node.history))

    def _fail(self, places: Iterable[int], error: KafkaError) -> None:
        outcome = self._redis.failed(error)
        for place in places:
            self.replies[place] = outcome
