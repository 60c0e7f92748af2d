"""Replies of Redis, and the ONE place where its error replies, and what prevents replies, become Korvet's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, Union, cast

from korvet.errors import (
    ErrorCode,
    KafkaError,
    LeaseEndedError,
    NodeAwayError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

# The server refuses for a reason that lies in its state, not in the command: the same command can succeed
# later, or after an operator has acted. Source: the shared error objects of Redis and Valkey
# (`createSharedObjects`), Redis Cluster's and the access control list's replies.
_UNAVAILABLE = {
    "LOADING": "it is still loading its data",
    "MASTERDOWN": "it is a replica that has lost its master",
    "READONLY": "it is a read-only replica",
    "OOM": "its memory is full (maxmemory)",
    "CLUSTERDOWN": "the Redis cluster is down",
    "BUSY": "a script blocks it",
    "NOREPLICAS": "it has too few replicas to accept writes (min-replicas-to-write)",
    "MISCONF": "it cannot persist its data and refuses writes",
    "TRYAGAIN": "it is moving the keys to another node",
    "ASK": "it is moving the keys to another node",
    "MOVED": "another node of the cluster has the keys",
    "UNKILLABLE": "a script blocks it",
    "NOAUTH": "it wants credentials: redis.url has none",
    "NOPERM": "the Redis user may not do this",
    "WRONGPASS": "it refuses the credentials of redis.url",
    "STALE_BROKER_EPOCH": "the request comes after the end of this worker's lease",
}
_ABORTED = "EXECABORT Transaction discarded because of: "
"""Begins the answer to EXEC, before the error, if Redis refuses only that."""
_CODES = ErrorCode.__members__
_WORD = re.compile(r"[A-Z]{2,20}")
_REPLICA = re.compile(r"slave\d+")

LAG_S_MAX = 10
"""A replica that has reported nothing for longer is not in sync (as Redis' min-replicas-max-lag by default)."""


class RespError(Exception):
    """An error reply of Redis that is about the command: `name` is its first word, such as WRONGTYPE."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name} {message}".rstrip())
        self.name = name
        self.message = message


class ReadOnlyError(StorageUnavailableError):
    """The server is a replica: perhaps a former master whose name leads to another server by now."""


class MovedError(StorageUnavailableError):
    """Another node of the cluster has the keys: nothing was done. `host` is "" if it is the host that was asked."""

    def __init__(self, message: str) -> None:
        """Raise ValueError for a text that is not of the form `<reason> (MOVED <slot> <host>:<port>)`."""
        super().__init__(message)
        begin = message.rindex("(") + 1
        _, slot, address = message[begin:-1].split(" ")
        host, _, port = address.rpartition(":")
        self.slot, self.host, self.port = int(slot), host, int(port)


class SlotMovingError(StorageUnavailableError):
    """The keys are on their way to another node of the cluster: nothing was done."""


class HistoryChangedError(StorageUnavailableError):
    """Redis has another history by now than the one that was asked for: nothing was sent."""


class MemoryFullError(StorageUnavailableError):
    """The server is at its maxmemory and refuses what needs more: nothing was written."""


_KINDS = {
    "READONLY": ReadOnlyError,
    "OOM": MemoryFullError,
    "STALE_BROKER_EPOCH": LeaseEndedError,
    "MOVED": MovedError,
    "TRYAGAIN": SlotMovingError,
    "ASK": SlotMovingError,
}
_NAMES: dict[type[KafkaError], str] = {
    ReadOnlyError: "READONLY",
    MemoryFullError: "OOM",
    LeaseEndedError: "STALE_BROKER_EPOCH",
    MovedError: "MOVED",
    SlotMovingError: "TRYAGAIN",
}

# A memoryview must be contiguous, and show the same until it is written: large ones are not copied.
Arg: TypeAlias = bytes | str | int | memoryview
Command: TypeAlias = Sequence[Arg | Sequence[Arg]]
"""A command's words; those of an inner sequence stand in its place."""

Parsed = TypeVar("Parsed")
ReplyError: TypeAlias = RespError | KafkaError
Reply: TypeAlias = Union[bytes, int, list["Reply"], RespError, KafkaError, None]  # noqa: UP007 - recursive


def error_of(text: str) -> ReplyError:
    """Return the exception for one error reply, `text` without its leading `-`."""
    text = text.removeprefix(_ABORTED)
    name, _, message = text.partition(" ")
    reason = _UNAVAILABLE.get(name)
    if reason is not None:
        message = f"Redis refused: {reason} ({text})"
        kind = _KINDS.get(name, StorageUnavailableError)
        with contextlib.suppress(ValueError):
            return kind(message)
        return StorageUnavailableError(message)
    if name in _CODES:
        return KafkaError(_CODES[name], message)
    return RespError(name, message)


def prevented(kind: str, text: str, *, is_cluster: bool) -> StorageUnavailableError:
    """Return the exception for a request that was not sent, or not answered; `kind` is a word of korvet_core."""
    error = StorageUnavailableError(text)
    if kind == "unknown":
        error = OutcomeUnknownError(text)
    elif kind == "history":
        error = HistoryChangedError(text)
    elif kind == "away" and is_cluster:
        error = NodeAwayError(text)
    error.was_prevented = True
    return error


def is_prevented(reply: Reply) -> bool:
    """Return whether there is no reply: the request was not sent, or not answered."""
    return isinstance(reply, StorageUnavailableError) and reply.was_prevented


def is_missing(reply: Reply) -> bool:
    """Return whether Redis lacks a script: it was not run."""
    return isinstance(reply, RespError) and reply.name == "NOSCRIPT"


def is_elsewhere(reply: Reply) -> bool:
    """Return whether a node refused because it does not have the slot, or is moving it."""
    return isinstance(reply, MovedError | SlotMovingError)


def name_of(error: ReplyError) -> str:
    """Return an error as one word out of a bounded number: Kafka's name, or that of Redis."""
    if isinstance(error, StorageUnavailableError):
        return _NAMES.get(type(error), "UNAVAILABLE")
    if isinstance(error, KafkaError):
        return error.code.name
    return error.name if _WORD.fullmatch(error.name) else "OTHER"


def value_of(reply: Reply) -> Reply:
    """Return the reply, or raise it if it is an error."""
    try:
        if isinstance(reply, Exception):
            raise reply
        return reply
    finally:
        reply = None  # else the error and this frame would hold each other


def checked(key: str, reply: Reply) -> bytes | int | list[Reply] | None:
    """Return a reply about `key`; raises KafkaError for an error reply."""
    if isinstance(reply, RespError):
        raise refused(key, reply)
    if isinstance(reply, KafkaError):
        try:
            raise reply
        finally:
            reply = None
    return reply


def listed(key: str, reply: Reply) -> list[Reply]:
    """Return an array; raises KafkaError for an error reply and for anything else."""
    reply = checked(key, reply)
    if not isinstance(reply, list):
        raise malformed(key, "the answer")
    return reply


def parsed(key: str, what: str, reply: Reply, parse: Callable[[Any], Parsed]) -> Parsed | KafkaError:
    """Return what `parse` makes of a reply about `key`, or a KafkaError for an error reply and one it cannot parse."""
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(key, reply)
    try:
        return parse(reply)
    except KafkaError as error:
        return error.without_frames()
    except (ValueError, TypeError, LookupError, AttributeError):
        return malformed(key, what)


def time_ms(reply: Reply) -> int:
    """Return the answer to TIME in ms; raises KafkaError KAFKA_STORAGE_ERROR, and what prevented it."""
    if isinstance(reply, KafkaError):
        raise reply
    try:
        seconds, microseconds = cast("list[bytes]", reply)
        return int(seconds) * 1000 + int(microseconds) // 1000
    except (ValueError, TypeError) as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Redis answered TIME with {reply!r}") from error


def replication_info(reply: Reply) -> dict[str, str]:
    """Return the fields of the answer to INFO replication; none if Redis refused it."""
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def insync_of(info: Reply) -> int:
    """Return how many servers are in sync by the answer to INFO replication: the master, and replicas that report."""
    return insync_in(replication_info(info))


def insync_in(info: Mapping[str, str]) -> int:
    """Return that of the fields of INFO replication."""
    if info.get("role") != "master":
        return 0
    return 1 + sum(map(_is_in_sync, replicas_in(info)))


def replicas_in(info: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the fields of each replica."""
    lines = [text for name, text in info.items() if _REPLICA.fullmatch(name)]
    return [dict(part.partition("=")[::2] for part in line.split(",")) for line in lines]


def _is_in_sync(replica: Mapping[str, str]) -> bool:
    # -1: the two clocks that Redis subtracts may be a second apart. Less: its clock was set back, and it does not know.
    lag = replica.get("lag", "")
    return replica.get("state") == "online" and (lag == "-1" or (lag.isdecimal() and int(lag) <= LAG_S_MAX))


def history_of(reply: Reply) -> str:
    """Return the replication id of a master by its answer to INFO replication: the name of its history of writes.

    A server gets a new one when it starts, becomes a master or gets its first replica. As long as it has the same one
    it has lost nothing that it acknowledged. "" for a replica, and if Redis does not say.
    """
    return history_in(replication_info(reply))


def history_in(info: Mapping[str, str]) -> str:
    """Return that of the fields of INFO replication."""
    return info.get("master_replid", "") if info.get("role") == "master" else ""


@contextlib.contextmanager
def errors_about(key: str) -> Iterator[None]:
    """Raise the KafkaError of `refused` for an error reply to a command about `key`."""
    try:
        yield
    except RespError as error:
        raise refused(key, error) from error


def refused(key: str, error: RespError) -> KafkaError:
    """Return the error for an error reply that is about the command: most often a key of the wrong type."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key}: Redis answered {error}")


def malformed(key: str, what: str) -> KafkaError:
    """Return the error for content that Korvet cannot have stored."""
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key}: {what} is malformed")
