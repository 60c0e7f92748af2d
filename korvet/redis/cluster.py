"""The nodes of a Redis Cluster: which request goes to which, also when a slot moves or a node is away.

A request that a node refuses because it does not have the slot, or is moving it, was not run: it is sent again, to the
node that has the slot then. What was sent and not answered is unknown, and never sent again. A node that is away costs
what goes to it alone: its requests have a StorageUnavailableError in the place of their replies.

ASK is not followed: the keys of a script are on both nodes while the slot moves, and neither can run it. It waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from korvet.errors import KafkaError, NodeAwayError, OutcomeUnknownError, StorageUnavailableError
from korvet.redis.connection import Arg
from korvet.redis.node import PendingReplies, RedisNode, ScriptCall
from korvet.redis.replies import HistoryChangedError, MovedError, Reply, SlotMovingError
from korvet.redis.slots import SlotMap, slot_of, tag_of
from korvet.redis.url import RedisAddress

_MOVING_S_MIN, _MOVING_S_MAX = 0.02, 0.32
"""Until a request is sent again whose slot is on its way: a slot with a small log takes a few ms."""

_KEY_AT = {b"EVALSHA": 3, b"XINFO": 2, b"XGROUP": 2, b"MEMORY": 2}
"""Where the first key of a command stands, if it is not the next word."""

_KEYLESS = {b"TIME", b"PING"}
"""These go where the next command with a key goes."""


class _NodeRequests(Protocol):
    """Requests that one node was sent."""

    @property
    def ready(self) -> bool:
        """Whether `result` has nothing to wait for."""

    def result(self) -> list[list[Reply]]:
        """Wait for the replies to each request; raises StorageUnavailableError."""


class RedisCluster:
    """The nodes that one client of a process talks to, each over one connection, made at the first use."""

    def __init__(self, slots: SlotMap, timeout_ms: int, node: Callable[[RedisAddress], RedisNode]) -> None:
        """`node` makes the client of an address; `timeout_ms` bounds how long a request waits for a slot on its way."""
        self.slots = slots
        self.timeout_s = timeout_ms / 1000
        self._make = node
        self._nodes: dict[RedisAddress, RedisNode] = {}
        self._by_slot: dict[int, RedisNode] = {}
        # The lowest and the highest slot of each master, by its name.
        self._slots_of: dict[str, tuple[int, int]] = {}
        self._version = 0
        self.first_lease_end_ms = 0
        """RedisNode.lease_end_ms of nodes that are new."""

    def node_at(self, slot: int) -> RedisNode:
        """Return the node that has a slot; raises StorageUnavailableError."""
        if self._version != self.slots.version:
            self._take_map()
        node = self._by_slot.get(slot)
        if node is None:
            address = self.slots.master_of(slot)
            node = self._nodes.get(address) or self._added(address)
            self._by_slot[slot] = node
        return node

    def nodes(self) -> list[RedisNode]:
        """Return the nodes that have slots; raises StorageUnavailableError."""
        return [self._nodes.get(address) or self._added(address) for address in self.slots.masters()]

    def tag_of(self, name: str, turn: int) -> str:
        """Return a hash tag of a node's lowest slot, of its highest in odd turns; raises StorageUnavailableError."""
        if not self._version or self._version != self.slots.version:
            self._take_map()
        if (slots := self._slots_of.get(name)) is None:
            raise self._no_master(name)
        return tag_of(slots[turn % 2])

    def known_nodes(self) -> list[RedisNode]:
        """Return the nodes that were used."""
        return list(self._nodes.values())

    def begin_pipeline(self, commands: Sequence[Sequence[Arg]], reply_bytes: int) -> _ClusterCommands:
        """Send commands without waiting for their replies; those from MULTI to EXEC stay together."""
        groups = list(_grouped(commands))
        weight = reply_bytes // len(groups) if groups else 0

        def send(node: RedisNode, places: Sequence[int]) -> _NodeRequests:
            return _SentCommands(node, [groups[place] for place in places], weight * len(places))

        return _ClusterCommands(ClusterRequests(self, _slots_of(groups), send), groups)

    def begin_scripts(
        self, calls: Sequence[ScriptCall], before: Callable[[RedisNode], object] | None = None
    ) -> ClusterReplies:
        """Send scripts without waiting for their replies, each to the node of its first key.

        `before` is called with each node that is sent some, also where a script follows its slot.
        """

        def send(node: RedisNode, places: Sequence[int]) -> _NodeRequests:
            if before is not None:
                before(node)
            return _SentScripts(node.begin_scripts([calls[place] for place in places]))

        return ClusterReplies(ClusterRequests(self, [slot_of(keys[0]) for _, keys, _ in calls], send))

    def follow(self, refusals: Iterable[Reply], attempt: int) -> None:
        """Learn from refusals where slots are now; wait for those that are on their way, the longer the later."""
        waits = attempt > 0  # two nodes may each name the other one for a moment
        for refusal in refusals:
            if isinstance(refusal, MovedError):
                self.slots.moved(refusal)
            else:
                waits = True
        if waits:
            self.slots.pause(min(_MOVING_S_MIN * 2**attempt, _MOVING_S_MAX))

    def failed(self, error: KafkaError) -> KafkaError:
        """Return the error for requests that a node could not be sent, or did not answer."""
        # Another node may have the slots by now, or soon.
        self.slots.read_soon()
        is_unknown = isinstance(error, OutcomeUnknownError | HistoryChangedError)
        if is_unknown or not isinstance(error, StorageUnavailableError):
            return error.without_frames()
        return NodeAwayError(error.message)

    def look_for(self, node: RedisNode) -> None:
        """Try in the background to reach a node that is away, and look whether another one has its slots."""
        node.reconnect_soon()
        self.slots.read_soon()

    def node_named(self, name: str) -> RedisNode:
        """Return the node of that name, as another client of the same map knows it; raises StorageUnavailableError."""
        if self._version != self.slots.version:
            self._take_map()
        for node in self._nodes.values():
            if node.name == name:
                return node
        for address in self.slots.masters():
            if str(address) == name:
                return self._added(address)
        raise self._no_master(name)

    def _no_master(self, name: str) -> StorageUnavailableError:
        """Return the error, and read the map again: a client that sends nothing does not learn that its own is old."""
        self.slots.read_soon()
        return StorageUnavailableError(f"{name} is no master of the Redis cluster any more")

    def _added(self, address: RedisAddress) -> RedisNode:
        added = self._nodes[address] = self._make(address)
        added.lease_end_ms = self.first_lease_end_ms
        added.on_silence = partial(self._replaced, address)
        self._take_map()
        return added

    def _replaced(self, address: RedisAddress) -> None:
        """Give up a node that answers nothing if another one has its slots by now, else look again soon."""
        node = self._nodes.get(address)
        if node is not None and address not in self.slots.known_masters():
            node.reconnect("it is silent, and no master of the cluster any more")
        self.slots.read_soon()

    def _take_map(self) -> None:
        """Learn which slots nodes have, and close those that are masters no more and idle."""
        masters = self.slots.masters()
        self._version = self.slots.version
        self._by_slot.clear()
        self._slots_of = {str(address): slots for address, slots in masters.items()}
        for address, node in list(self._nodes.items()):
            if address not in masters and not node.busy:
                del self._nodes[address]
                node.close()


class ClusterRequests:
    """Requests of one caller to any number of nodes, until none of them is refused for where its slot is."""

    def __init__(
        self,
        cluster: RedisCluster,
        slots: Sequence[int],
        send: Callable[[RedisNode, Sequence[int]], _NodeRequests],
    ) -> None:
        """`slots` are those of the requests; `send` sends those at some places to a node, in one write."""
        self._cluster, self._slots, self._send = cluster, slots, send
        self._outcomes: list[list[Reply]] = [[]] * len(slots)
        self._under_way: list[tuple[Sequence[int], _NodeRequests]] = []
        self._deadline = time.monotonic() + cluster.timeout_s
        self._begin(range(len(slots)))

    @property
    def ready(self) -> bool:
        """Whether the first replies of all nodes are here."""
        return all(sent.ready for _, sent in self._under_way)

    def outcomes(self) -> list[list[Reply]]:
        """Wait for the replies to each request, or in their place the one error that prevented it."""
        attempt = 0
        while True:
            self._collect()
            refused = {
                place: refusal
                for place, outcome in enumerate(self._outcomes)
                if (refusal := next(filter(is_elsewhere, outcome), None)) is not None
            }
            if not refused or time.monotonic() >= self._deadline:
                return self._outcomes
            self._cluster.follow(refused.values(), attempt)
            attempt += 1
            self._begin(list(refused))

    def _begin(self, places: Sequence[int]) -> None:
        by_node: dict[RedisNode, list[int]] = {}
        for place in places:
            try:
                by_node.setdefault(self._cluster.node_at(self._slots[place]), []).append(place)
            except StorageUnavailableError as error:
                self._fail([place], error)
        for node in connected_first(by_node):
            some = by_node[node]
            try:
                self._under_way.append((some, self._send(node, some)))
            except StorageUnavailableError as error:
                self._fail(some, error)

    def _collect(self) -> None:
        under_way, self._under_way = self._under_way, []
        for places, sent in under_way:
            try:
                results = sent.result()
            except StorageUnavailableError as error:
                self._fail(places, error)
                continue
            for place, result in zip(places, results, strict=True):
                self._outcomes[place] = result

    def _fail(self, places: Iterable[int], error: StorageUnavailableError) -> None:
        outcome = self._cluster.failed(error)
        for place in places:
            self._outcomes[place] = [outcome]


class ClusterReplies:
    """Scripts that were sent (a Pending). A node runs them in the order of sending, unless a slot moves."""

    in_order = True

    def __init__(self, requests: ClusterRequests) -> None:
        self._requests = requests

    @property
    def ready(self) -> bool:
        """Whether the replies have arrived."""
        return self._requests.ready

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the calls; may be called once."""
        return [reply for [reply] in self._requests.outcomes()]


class _ClusterCommands:
    """Commands that were sent (a Pending), in groups that stay together."""

    in_order = True

    def __init__(self, requests: ClusterRequests, groups: Sequence[Sequence[Sequence[Arg]]]) -> None:
        self._requests, self._groups = requests, groups

    @property
    def ready(self) -> bool:
        return self._requests.ready

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the commands; may be called once."""
        return [
            reply
            for group, outcome in zip(self._groups, self._requests.outcomes(), strict=True)
            for reply in (outcome if len(outcome) == len(group) else outcome * len(group))
        ]


class _SentScripts:
    def __init__(self, replies: PendingReplies) -> None:
        self._replies = replies

    @property
    def ready(self) -> bool:
        return self._replies.ready

    def result(self) -> list[list[Reply]]:
        return [[reply] for reply in self._replies.result()]


class _SentCommands:
    def __init__(self, node: RedisNode, groups: Sequence[Sequence[Sequence[Arg]]], reply_bytes: int) -> None:
        commands = [command for group in groups for command in group]
        self._sizes = [len(group) for group in groups]
        self._sent = node.begin_pipeline(commands, reply_bytes)

    @property
    def ready(self) -> bool:
        return self._sent.ready

    def result(self) -> list[list[Reply]]:
        replies = iter(self._sent.result())
        return [[next(replies) for _ in range(size)] for size in self._sizes]


def is_elsewhere(reply: Reply) -> bool:
    """Return whether a node refused because it does not have the slot, or is moving it."""
    return isinstance(reply, MovedError | SlotMovingError)


def connected_first(nodes: Iterable[RedisNode]) -> list[RedisNode]:
    """Return nodes, first those that need not be connected to: one that hangs must not hold up the others."""
    return sorted(nodes, key=lambda node: not node.connected)


def _grouped(commands: Sequence[Sequence[Arg]]) -> Iterator[list[Sequence[Arg]]]:
    """Yield the commands one by one, but those from MULTI to EXEC together."""
    group: list[Sequence[Arg]] = []
    for command in commands:
        group.append(command)
        if group[0][0] != "MULTI" or command[0] == "EXEC":
            yield group
            group = []


def _slots_of(groups: Sequence[Sequence[Sequence[Arg]]]) -> list[int]:
    """Return the slot of each group by the first key in it; those without one go with the next one that has one."""
    slots: list[int] = []
    keyless = 0
    for group in groups:
        slot = next((slot for command in group if (slot := _slot_of(command)) is not None), None)
        if slot is None:
            keyless += 1
            continue
        slots += [slot] * (keyless + 1)
        keyless = 0
    return slots + [slots[-1] if slots else 0] * keyless


def _slot_of(command: Sequence[Arg]) -> int | None:
    word = command[0]
    name = word.encode() if isinstance(word, str) else word
    at = _KEY_AT.get(name, 1) if isinstance(name, bytes) else 1
    if name in _KEYLESS or len(command) <= at:
        return None
    key = command[at]
    return slot_of(key) if isinstance(key, str | bytes) else None
