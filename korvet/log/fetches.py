"""What consumers of a worker read: korvet_core.DataPath does it, and asks here for what the core cannot know."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub

from korvet.errors import ErrorCode, KafkaError
from korvet.log.appends import Appends, refused
from korvet.log.epochs import NO_EPOCH, EpochStart
from korvet.log.high_watermark import LogEnd
from korvet.log.remote.client import RemoteResponse
from korvet.log.remote.tier import RemoteTier, read_request, to_end
from korvet.log.store import LogStore
from korvet.log.types import RemoteRange
from korvet.logs import Log, RateLimitedLogger
from korvet.redis.pubsub import Subscriptions
from korvet.topics.types import Partition
from korvet.turns import in_turns

Question = tuple[Any, ...]
"""A word and what it is about (korvet_core.DataPath.fetch_questions)."""

_log = RateLimitedLogger(Log(__name__))
_SHORTEST_SECONDS = 0.001  # of the timer: what is due at once has its turn after the sockets that are ready
_DAMAGE_REMEMBERED_MAX = 10_000
"""Partitions remembered as warned about: bounds the memory, at the price of a second warning."""


class ClientDecisions(Protocol):
    """Decides on what clients ask for."""

    def decide(self, client: Any, word: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:  # noqa: ANN401 - whom the core has for its connection
        """Return the decisions on questions of one kind, a KafkaError for what is refused."""


class Fetches:
    """The reads of one worker's consumers."""

    def __init__(self, log: LogStore, subscriptions: Subscriptions, remote: RemoteTier) -> None:
        self._log, self._remote = log, remote
        self._appends: Appends = log.appends
        self._core = log.appends.core
        self._core.hear_by(subscriptions.core)
        self.clients: ClientDecisions | None = None
        self._damaged: set[str] = set()
        self._timer = get_hub().loop.timer(0)
        hears = log.appends.hears
        hears["fetch"] = partial(gevent.spawn, self._decide)
        hears["seen"] = self._note_end
        hears["foreign"] = self._warn_of_foreign
        hears["damaged"] = self._warn_of_damage
        hears["timer"] = lambda _, __: self._set_timer()

    def drain(self) -> None:
        """Answer every parked fetch now, with what there is, and park none from now on."""
        self._core.drain()

    def _set_timer(self) -> None:
        due_s = self._core.take_timer_s()
        self._timer.stop()
        if due_s is not None:
            self._timer.close()
            self._timer = get_hub().loop.timer(max(due_s, _SHORTEST_SECONDS))
            self._timer.start(self._core.tick, update=True)

    # --- what reads have shown

    def _note_end(self, stream: str, detail: tuple[int, int, list[tuple[int, int]]]) -> None:
        epoch, end, epochs = detail
        if (partition := self._appends.remembered(stream)) is not None:
            self._log.ends.note(partition, epoch, end, tuple(EpochStart(*start) for start in epochs))

    def _warn_of_foreign(self, stream: str, count: int) -> None:
        entries = "1 entry is no batch" if count == 1 else f"{count} entries are no batches"
        _log.warning(
            stream, "entries of other clients of Redis are not served", stream=stream, entries=entries
        )

    def _warn_of_damage(self, stream: str, detail: tuple[int, str]) -> None:
        if stream in self._damaged:
            return
        if len(self._damaged) >= _DAMAGE_REMEMBERED_MAX:
            self._damaged.clear()
        self._damaged.add(stream)
        offset, encoding = detail
        reason = f"not a {encoding} frame within record.decompressed.max.bytes"
        _log.warning(stream, "values served as stored", stream=stream, offset=offset, reason=reason)

    # --- questions

    def _decide(self, request: int, client: Any) -> None:  # noqa: ANN401 - as ClientDecisions has it
        questions = self._core.fetch_questions(request)
        fault = _refused(
            KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker; its log says more")
        )
        decisions: list[Any] = [fault] * len(questions)
        try:
            for word, group in itertools.groupby(enumerate(questions), lambda numbered: numbered[1][0]):
                numbered = list(group)
                asked = [question[1:] for _, question in numbered]
                for (index, _), decision in zip(numbered, self._decisions(client, word, asked), strict=True):
                    decisions[index] = decision
        except Exception:  # noqa: BLE001 - a mistake of ours: its client gets an error and the others go on
            Log(__name__).exception("request failed", api="Fetch")
        finally:
            self._core.decide_fetch(request, decisions)

    def _decisions(self, client: Any, word: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:  # noqa: ANN401 - as above
        try:
            if word == "watermark":
                return self._watermarks(asked)
            if word == "remote":
                return self._read_remote(asked)
            if word == "external":
                return self._take_in(asked)
            if word == "epoch":
                return [self._epoch(*question) for question in in_turns(asked)]
        except KafkaError as error:
            return [_refused(error.without_frames())] * len(asked)
        # Without clients nothing else is asked.
        decided = [None] * len(asked) if self.clients is None else self.clients.decide(client, word, asked)
        return [_refused(decision) if isinstance(decision, KafkaError) else decision for decision in decided]

    def _epoch(self, stream: str, known: int, last: int) -> Any:  # noqa: ANN401 - a decision
        starts = (EpochStart(last, 0),) if last != NO_EPOCH else ()
        try:
            return self._log.check_epoch(self._partition(stream), known, starts)
        except KafkaError as error:
            return _refused(error.without_frames())

    def _partition(self, stream: str) -> Partition:
        return self._appends.partition_of(stream)

    def _watermarks(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        ends = [
            (node, history, LogEnd(self._partition(stream), end, stable, shown, committed))
            for stream, node, history, end, stable, shown, committed in asked
        ]
        return [limit and ("bounds", *limit) for limit in self._log.watermarks.limits(ends)]

    def _read_remote(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        requests = []
        ranges = []
        for stream, (start, end, archived, epochs), offset, bytes_max, is_first, _, _ in asked:
            known = RemoteRange(start, end, archived, tuple(EpochStart(*start) for start in epochs))
            partition = self._partition(stream)
            codec = self._appends.codec_of(stream)
            requests.append(
                read_request(partition, known, offset, bytes_max, at_least_one=is_first, codec=codec)
            )
            ranges.append(known)
        answers = self._remote.read(requests, wait=asked[0][5])
        return [
            self._batches(to_end(answer, known, question[6]))
            for answer, known, question in zip(answers, ranges, asked, strict=True)
        ]

    def _batches(self, answer: RemoteResponse | KafkaError | None) -> Any:  # noqa: ANN401 - a decision
        if answer is None:
            return ("later",)
        if isinstance(answer, KafkaError):
            return _refused(answer)
        return "batches", answer.data, answer.record_count, answer.more

    def _take_in(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Have the logs take in what other clients of Redis have written; a number if that takes longer."""
        decisions: list[Any] = []
        for stream, offset in asked:
            done = self._log.external.take_in(self._partition(stream), offset)
            if isinstance(done, KafkaError):
                decisions.append(_refused(done))
            else:
                decisions.append(None if done else 0)
        return decisions


def _refused(error: KafkaError) -> tuple[str, int, str, str]:
    """Return the decision to answer with an error."""
    return "refuse", *refused(error)
