"""Group commit: what arrives in one turn of the event loop goes to Redis together.

Appends to one partition become one call of an append script, whichever requests and connections they came with: what a
call costs beside its batches is paid once. All calls for one node leave in one write. Nothing waits for more to come: a
turn ends when there is nothing left to do but to wait. Each append keeps its own result, and appends to one partition
keep their order.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import gevent
from gevent.hub import Waiter, get_hub

from korvet.errors import (
    AppendUnknownError,
    ErrorCode,
    KafkaError,
    OutcomeUnknownError,
    TransactionUnverifiedError,
)
from korvet.log.append_calls import AppendAnswer, BatchArgs, append_call, append_script, batch_args
from korvet.log.epoch_scripts import EpochScripts, NodeScripts, ScriptReply, send_in_epoch, was_not_run
from korvet.log.epochs import KnownEnds, LeaderEpochs
from korvet.log.external_entries import ROUNDS_MAX, ExternalEntries, outrun, report_moved
from korvet.log.types import NO_TRANSACTION, AppendBatch, Appended, AppendRecords
from korvet.redis.client import Redis, RedisNode, ScriptCall
from korvet.redis.replies import MemoryFullError, Reply, RespError, malformed, refused
from korvet.topics.types import Partition

CALL_BYTES_MAX = 1024 * 1024
CALL_RECORDS_MAX = 2000
CALL_BATCHES_MAX = 100
"""What one call of a script holds at most, so that it does not block Redis longer than one large batch does.

One append may be larger. The records are those of format `record`, each of which is an entry.
"""

GROUP_BYTES = 256 * 1024
"""What is as large as this is sent at once: Redis may begin while the worker goes on; a call costs little beside it."""

_Append: TypeAlias = AppendRecords | AppendBatch
_Outcome: TypeAlias = Appended | KafkaError
_NO_OUTCOME: _Outcome = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "nothing has come of it yet")


class _PartitionCall:
    """One call of a script in a group that is not sent yet, the `place`-th: appends to one log."""

    __slots__ = ("batches", "partition", "place", "records", "size_bytes", "transactional")

    def __init__(self, place: int, partition: Partition) -> None:
        self.place, self.partition = place, partition
        self.batches: list[BatchArgs] = []
        self.transactional = False
        self.records = self.size_bytes = 0


class _AppendGroup:
    """Appends to logs of one node that are sent together; any number of greenlets wait for the answers.

    What was refused is not sent again here: each request does that in its turn, as the order of its connection needs.
    """

    def __init__(self, redis: Redis) -> None:
        self.size_bytes = 0
        self._redis = redis
        self._version = redis.order.version
        self._calls: list[_PartitionCall] = []
        self._last: dict[tuple[str, str], _PartitionCall] = {}
        self._sent: NodeScripts | None = None
        self._answers: Sequence[ScriptReply] | None = None
        self._waiting: list[Waiter[None]] = []
        self._taking = False

    @property
    def ready(self) -> bool:
        """Whether the replies to what was sent are here."""
        return self._answers is not None or (self._sent is not None and self._sent.replies.ready)

    @property
    def is_late(self) -> bool:
        """Whether what was refused before may not be refused any more: what is sent now would overtake it."""
        return self._redis.order.version != self._version

    def add(self, append: _Append, args: BatchArgs) -> _Place:
        """Add an append, and return where its result will be."""
        partition = append.partition
        log = partition.stream, partition.topic_id
        records = append.record_count if partition.format == "record" else 0
        call = self._last.get(log)
        if (
            call is None
            or call.size_bytes + args.size_bytes > CALL_BYTES_MAX
            or call.records + records > CALL_RECORDS_MAX
            or len(call.batches) == CALL_BATCHES_MAX
        ):
            call = self._last[log] = _PartitionCall(len(self._calls), partition)
            self._calls.append(call)
        if append.transaction != NO_TRANSACTION:
            call.transactional = True
        place = _Place(self, call.place, len(call.batches))
        call.batches.append(args)
        call.records += records
        call.size_bytes += args.size_bytes
        self.size_bytes += args.size_bytes
        return place

    def send(self, node: RedisNode, epochs: LeaderEpochs) -> None:
        """Send them; to be called once. Does not wait if the node is ready and its epoch is known."""
        calls, self._calls, self._last = self._calls, [], {}  # no circle with what waits for them
        try:
            if self.is_late:
                self._answers = [_NOT_SENT] * len(calls)
            else:
                made = [
                    append_call(call.partition, call.batches, transactional=call.transactional)
                    for call in calls
                ]
                self._sent = send_in_epoch(node, epochs, made, range(len(made)), as_they_are=True)
        except KafkaError as error:
            self._answers = [ScriptReply(self._redis.failed(error))] * len(calls)
        except BaseException:
            fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker; its log says more")
            self._answers = [ScriptReply(fault)] * len(calls)
            raise
        finally:
            self._wake()

    def answers(self) -> Sequence[ScriptReply]:
        """Wait for the replies to the calls, one for each. The first who waits takes them for all."""
        while self._answers is None:
            if self._sent is None or self._taking:
                self._wait()
            else:
                self._take(self._sent)
        return self._answers

    def _wait(self) -> None:
        waiter: Waiter[None] = Waiter()
        self._waiting.append(waiter)
        try:
            waiter.get()
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._wake()  # it was this one's turn
            raise

    def _take(self, sent: NodeScripts) -> None:
        self._taking = True
        try:
            replies = sent.replies.result()
            self._answers = [ScriptReply(reply, sent.node, sent.history, sent.epoch) for reply in replies]
        except KafkaError as error:
            self._answers = [ScriptReply(self._redis.failed(error))] * len(sent.places)
        finally:
            self._taking = False
            self._wake()

    def _wake(self) -> None:
        """Wake all once the answers are here, else one that takes them."""
        count = 1 if self._answers is None else len(self._waiting)
        loop = get_hub().loop
        for waiter in self._waiting[:count]:
            loop.run_callback(waiter.switch, None)
        del self._waiting[:count]


class _Place(NamedTuple):
    """Where the result of an append will be: in which call of a group, and in its answer."""

    group: _AppendGroup
    call: int
    batch: int


_NOT_SENT = ScriptReply(None)


class GroupCommit:
    """Gathers the appends of one worker in each turn of the event loop, and sends them."""

    def __init__(self, redis: Redis, epochs: LeaderEpochs) -> None:
        self._redis, self._epochs = redis, epochs
        self._open: dict[RedisNode, deque[_AppendGroup]] = {}
        # To these a greenlet sends: they are away, or what is in flight to them has reached its limit.
        self._waited_for: set[RedisNode] = set()

    def add(self, append: _Append, args: BatchArgs) -> _Place:
        """Add an append to what is sent at the end of this turn, and return where its result will be.

        Raises StorageUnavailableError if no node has the log.
        """
        node = self._redis.node_of(append.partition.stream)
        groups = self._open.get(node)
        if groups is None:
            groups = self._open[node] = deque([_AppendGroup(self._redis)])
            get_hub().loop.run_callback(self._send_to, node)
        elif not groups or groups[-1].size_bytes >= GROUP_BYTES or groups[-1].is_late:
            groups.append(_AppendGroup(self._redis))
        added = groups[-1].add(append, args)
        if groups[-1].size_bytes >= GROUP_BYTES:
            self._send_to(node)
        return added

    def _send_to(self, node: RedisNode) -> None:
        groups = self._open.get(node)
        if groups is None or node in self._waited_for:
            return
        try:
            while groups and node.ready and self._epochs.is_known(node):
                groups.popleft().send(node, self._epochs)
        except BaseException:
            get_hub().loop.run_callback(self._send_to, node)  # or the others would wait without end
            raise
        if groups:
            self._waited_for.add(node)
            gevent.spawn(self._wait_and_send, node, groups)
        else:
            del self._open[node]

    def _wait_and_send(self, node: RedisNode, groups: deque[_AppendGroup]) -> None:
        try:
            while groups:
                with contextlib.suppress(KafkaError):
                    self._epochs.of(node)  # waits before the group looks whether anything has changed
                group = groups.popleft()
                group.send(node, self._epochs)
                if not node.ready:
                    group.answers()  # until there is room, what comes gathers in the last group
        finally:
            self._waited_for.discard(node)
            get_hub().loop.run_callback(self._send_to, node)


class AppendScripts:
    """The appends of one request, from their sending to their outcomes (Pending).

    A script that meets external entries writes nothing, and is sent again after these have been dealt with.
    """

    def __init__(
        self,
        redis: Redis,
        appends: Sequence[_Append],
        commit: GroupCommit,
        epochs: LeaderEpochs,
        external: ExternalEntries,
        ends: KnownEnds,
    ) -> None:
        self._redis = redis
        self._appends = appends
        self._commit = commit
        self._epochs = epochs
        self._external = external
        self._ends = ends
        self._outcomes = [_NO_OUTCOME] * len(appends)
        self._waiting: dict[int, BatchArgs] = {}
        self._sent: dict[int, _Place] = {}
        self._sent_again = False
        self._version = redis.order.version
        for place, append in enumerate(appends):
            try:
                self._waiting[place] = batch_args(append)
            except KafkaError as error:
                self._outcomes[place] = error.without_frames()
        self._begin_wave()

    @property
    def in_order(self) -> bool:
        """Whether appends begun from now on are written after these: all were sent, and none may have to be again."""
        return not (self._waiting or self._sent_again) and self._version == self._redis.order.version

    @property
    def ready(self) -> bool:
        """Whether the replies to what was sent are here."""
        return all(sent.group.ready for sent in self._sent.values())

    def result(self) -> list[_Outcome]:
        """Wait for the replies, send again what must be, and return the outcomes in the order of the appends."""
        self._finish_wave()
        while self._waiting:
            self._sent_again = True
            self._begin_wave()
            self._finish_wave()
        return self._outcomes

    def _begin_wave(self) -> None:
        """Send what is waiting, of each partition the first.

        Two batches for one partition are sent one after the other: if the first had to be sent again, the second could
        overtake it.
        """
        if len(self._waiting) == 1:
            self._wave, self._waiting = self._waiting, {}
        else:
            first: dict[str, int] = {}
            for place in self._waiting:
                first.setdefault(self._appends[place].partition.stream, place)
            self._wave = {place: self._waiting.pop(place) for place in first.values()}
        for place, args in list(self._wave.items()):
            try:
                self._sent[place] = self._commit.add(self._appends[place], args)
            except KafkaError as error:
                self._finish(place, self._redis.failed(error))

    def _finish_wave(self) -> None:
        """Wait for what became of the appends of a wave; what was not run, or met external entries, is sent again.

        So are markers if memory is full, for readers and retention wait for them; `when_full` of a script writes them.
        """
        sent, self._sent = self._sent, {}
        external = []
        for place, at in sent.items():
            answer = at.group.answers()[at.call]
            if answer is not _NOT_SENT and not _was_not_run(self._appends[place], answer.reply):
                external += self._take(place, answer, at.batch)
        if len(external) < len(self._wave):
            external = self._send_again()
        for tries_left in reversed(range(ROUNDS_MAX)):
            for place in external:
                refusal = self._external.settle(self._appends[place].partition)
                if refusal is not None:
                    self._finish(place, refusal)
            if not self._wave:
                return
            if tries_left:
                external = self._send_again()
        for place in list(self._wave):
            self._finish(place, outrun(self._appends[place].partition))

    def _send_again(self) -> list[int]:
        """Send what is left of a wave, and wait for it; returns what met external entries."""
        self._sent_again = True
        calls: list[ScriptCall] = []
        for place, args in self._wave.items():
            append = self._appends[place]
            is_transactional = append.transaction != NO_TRANSACTION
            calls.append(append_call(append.partition, [args], transactional=is_transactional))
        answers = EpochScripts(self._redis, self._epochs, calls).result()
        external = []
        for place, answer in zip(list(self._wave), answers, strict=True):
            external += self._take(place, answer, 0)
        return external

    def _take(self, place: int, answer: ScriptReply, batch: int) -> list[int]:
        """Take the outcome of an append from its script's answer, or return it since it met external entries."""
        outcome = self._outcome(self._appends[place], answer, batch)
        if outcome is None:
            return [place]
        self._finish(place, outcome)
        return []

    def _finish(self, place: int, outcome: _Outcome) -> None:
        self._outcomes[place] = outcome
        del self._wave[place]

    def _outcome(self, append: _Append, answer: ScriptReply, at: int) -> _Outcome | None:
        """Return what became of the `at`-th append of a call; None if it met external entries."""
        reply = answer.reply
        if isinstance(reply, OutcomeUnknownError):
            return AppendUnknownError(reply.message, idempotent=append.producer_id >= 0)
        if isinstance(reply, KafkaError):
            return reply
        if isinstance(reply, RespError):
            return refused(append.partition.stream, reply)
        try:
            outcome = _read_appended(append, answer, at)
        except ValueError:
            return malformed(append.partition.stream, "the answer of an append script")
        if isinstance(outcome, TransactionUnverifiedError):
            return outcome
        if isinstance(outcome, KafkaError):
            self._redis.script_failed(append_script(append.partition), outcome)
        elif outcome is not None and not outcome.duplicate:
            # A duplicate may have been written in an earlier epoch.
            self._ends.note(append.partition, answer.epoch, outcome.base_offset + append.record_count)
        return outcome


def _was_not_run(append: _Append, reply: Reply) -> bool:
    """Return whether an append is to be sent again: also a marker that a full memory has refused."""
    return was_not_run(reply) or (isinstance(reply, MemoryFullError) and append.is_marker)


def _read_appended(append: _Append, answer: ScriptReply, at: int) -> _Outcome | None:
    """Return the outcome of the `at`-th append of a call; None if something must be done about external entries first.

    Reports how many of them the script renumbered or removed itself, to make room for its own.
    """
    said = AppendAnswer.unpack(answer.reply)
    if at == 0 and said.moved:
        report_moved(append.partition, said.moved)
    if not said.complete:
        return None
    verdict = said.verdict(append, at)
    if isinstance(verdict, KafkaError):
        return verdict
    return Appended(
        base_offset=verdict.base_offset,
        log_start=said.log_start,
        duplicate=verdict.duplicate,
        row_bytes=said.row_bytes,
        history=answer.history,
        replicas=append.partition.replicas,
        node=answer.node,
    )
