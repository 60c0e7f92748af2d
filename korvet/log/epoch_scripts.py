"""Scripts that write to logs: each carries the leader epoch of its node, and goes only to the history that has it.

One that was refused because a later epoch has begun, or because its slot is at another node or on its way there, was
not run, and one that met another history was not sent: it is sent again, with the epoch that it needs there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError, OutcomeUnknownError, StorageUnavailableError
from korvet.log.epochs import NO_EPOCH, LeaderEpochs, later_epoch
from korvet.pending import Pending
from korvet.redis.client import HistoryChangedError, Redis, RedisNode, ScriptCall
from korvet.redis.replies import Reply, is_elsewhere, is_missing

EPOCH_AT = 1
"""Where the leader epoch stands in the arguments of a script that carries it."""

_HISTORIES_MAX = 3
"""Tries to send scripts to the history whose epoch they carry: each but the first has met another one."""


class ScriptReply(NamedTuple):
    """The reply to a script, or what prevented it, and where it was sent with which epoch; "" if it was not."""

    reply: Reply
    node: str = ""
    history: str = ""
    epoch: int = NO_EPOCH


_NO_ANSWER = ScriptReply(None)
_ARE_READY = attrgetter("replies.ready")
_IS_CONNECTED = attrgetter("connected")


class NodeScripts(NamedTuple):
    """Scripts that were sent to a node, and those of the caller's that they are."""

    places: Sequence[int]
    node: str
    history: str
    epoch: int
    replies: Pending[list[Reply]]


def send_in_epoch(
    node: RedisNode,
    epochs: LeaderEpochs,
    calls: Sequence[ScriptCall],
    places: Sequence[int],
    *,
    as_they_are: bool = False,
) -> NodeScripts:
    """Send scripts to a node, with the epoch of the history that is to run them: another may have lost records.

    Where the arguments of one are a list, that at EPOCH_AT becomes the epoch. `as_they_are`: none runs a second time.
    Raises KafkaError if nothing was sent; if the connection leads to another history by then, that is the outcome.
    """
    try:
        epoch = epochs.of(node)
    except OutcomeUnknownError as error:
        raise StorageUnavailableError(error.message) from error  # of these scripts nothing was sent
    history = node.history
    for _, _, args in calls:
        if isinstance(args, list):
            args[EPOCH_AT] = epoch
    sent = node.begin_scripts(calls, history, as_they_are=as_they_are)
    return NodeScripts(places, node.name, history, epoch, sent)


def was_not_run(reply: Reply) -> bool:
    """Return whether a script was refused for a reason that ends: nothing was done, and it is to be sent again."""
    return _is_stale(reply) or is_elsewhere(reply) or is_missing(reply) or _met_another_history(reply)


class EpochScripts:
    """Scripts under way, sent by `send_in_epoch`."""

    def __init__(self, redis: Redis, epochs: LeaderEpochs, calls: Sequence[ScriptCall]) -> None:
        """Send them. What prevents one is its answer."""
        self._redis, self._epochs, self._calls = redis, epochs, calls
        self._answers = [_NO_ANSWER] * len(calls)
        self._under_way: list[NodeScripts] = []
        self._begin(range(len(calls)))

    @property
    def ready(self) -> bool:
        """Whether the replies to what was sent are here."""
        return all(map(_ARE_READY, self._under_way))

    def result(self) -> list[ScriptReply]:
        """Wait for the replies, send again what must be, and return the answers in the order of the calls."""
        if self._collect():
            return self._answers
        deadline = time.monotonic() + self._redis.timeout_s
        stale = [place for place, answer in enumerate(self._answers) if _is_stale(answer.reply)]
        moved, unsent = self._refused(is_elsewhere), self._refused(_met_another_history)
        attempt = 0
        tries_left = _HISTORIES_MAX - 1
        while (stale or moved or unsent) and time.monotonic() < deadline:
            # Nothing was written: once more, with the epoch that there is now.
            for place in stale:
                self._learn(self._answers[place])
            if moved:
                self._redis.follow([self._answers[place].reply for place in moved], attempt)
                attempt += 1
            self._redis.order.change()
            self._begin(sorted(stale + moved + unsent))
            self._collect()
            tries_left -= 1
            # A second time another worker is ahead of this one: its client may try again.
            stale, moved = [], self._refused(is_elsewhere)
            unsent = self._refused(_met_another_history) if tries_left > 0 else []
        return self._answers

    def _refused(self, is_refusal: Callable[[Reply], bool]) -> list[int]:
        return [index for index, answer in enumerate(self._answers) if is_refusal(answer.reply)]

    def _learn(self, stale: ScriptReply) -> None:
        with contextlib.suppress(KafkaError):
            node = self._redis.node_named(stale.node)
            if (last := later_epoch(cast("KafkaError", stale.reply))) > self._epochs.known(node):
                self._epochs.refresh(node, last)

    def _begin(self, places: Sequence[int]) -> None:
        if len(places) > 1 and self._redis.is_cluster:
            self._begin_at_nodes(places)
        elif places:
            try:
                node = self._redis.node_of(self._calls[places[0]][1][0])
                self._under_way.append(self._sent(node, places))
            except KafkaError as error:
                self._fail(places, error)

    def _begin_at_nodes(self, places: Sequence[int]) -> None:
        by_node: dict[RedisNode, list[int]] = {}
        for place in places:
            try:
                node = self._redis.node_of(self._calls[place][1][0])
            except StorageUnavailableError as error:
                self._fail((place,), error)
            else:
                by_node.setdefault(node, []).append(place)
        # First nodes that need not be connected to: one that hangs must not hold up the others.
        for node in sorted(by_node, key=_IS_CONNECTED, reverse=True):
            try:
                self._under_way.append(self._sent(node, by_node[node]))
            except KafkaError as error:
                self._fail(by_node[node], error)

    def _sent(self, node: RedisNode, places: Sequence[int]) -> NodeScripts:
        calls = self._calls
        if len(places) < len(calls):
            calls = [calls[place] for place in places]
        return send_in_epoch(node, self._epochs, calls, places)

    def _collect(self) -> bool:
        """Take the replies; returns whether none of them is an error."""
        under_way, self._under_way = self._under_way, []
        all_well = True
        for sent in under_way:
            try:
                replies = sent.replies.result()
            except KafkaError as error:
                self._fail(sent.places, error)
                all_well = False
                continue
            for place, reply in zip(sent.places, replies, strict=True):
                self._answers[place] = ScriptReply(reply, sent.node, sent.history, sent.epoch)
                all_well = all_well and not isinstance(reply, KafkaError)
        return all_well

    def _fail(self, places: Iterable[int], error: KafkaError) -> None:
        outcome = self._redis.failed(error)
        for place in places:
            self._answers[place] = ScriptReply(outcome)


def _is_stale(reply: Reply) -> bool:
    """Return whether a script refused because a later leader epoch than that of this worker has begun."""
    return isinstance(reply, KafkaError) and reply.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def _met_another_history(reply: Reply) -> bool:
    """Return whether a script was not sent, for the connection leads to another history than the one it was for."""
    return isinstance(reply, HistoryChangedError)
