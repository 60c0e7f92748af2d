"""Replies of Redis as bytes, what the reader of a compiled build makes of them, and what calls leave in memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from korvet import native
from korvet.redis.connection import MORE

Reply = Any
"""What is written: None, an int, bytes (a string), str (a status), an Exception (an error) or a list of these."""


class ReplyError(Exception):
    """What an error reply becomes; equal to another one that says the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplyError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def written(reply: Reply) -> bytes:
    """Return a reply as Redis sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, str):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, Exception):
        return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n" % len(reply) + b"".join(map(written, reply))


def transaction(*replies: Reply) -> bytes:
    """Return the replies to a MULTI, as many commands as there are replies, and EXEC."""
    return b"".join(map(written, ["OK", *["QUEUED"] * len(replies), list(replies)]))


def new_native() -> native.Reader:
    return native.Reader(ReplyError, MORE, hiredis.ProtocolError)


def new_hiredis() -> hiredis.Reader:
    return hiredis.Reader(replyError=ReplyError, notEnoughData=MORE)


def entries_of(entries: Sequence[Any]) -> Any:
    """Return entries as they come from a read of a log."""
    reader = new_native()
    reader.feed(transaction([b"state"], entries))
    replies = [reader.gets() for _ in range(4)]
    return replies[-1][1]


def as_lists(reply: Any) -> Any:
    """Return a reply as hiredis has it."""
    if isinstance(reply, list | native.Entries):
        return [as_lists(each) for each in reply]
    return reply


KEPT_MIN = 500
"""A reference that is lost or kept is one of each call, in every turn; what others in the process free is not."""


def blocks_of(call: Callable[[], object]) -> int:
    """Return how many blocks of memory a thousand calls leave behind, or take: the least of some turns."""
    call()
    found = []
    for _ in range(3):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(1000):
            call()
        gc.collect()
        found.append(sys.getallocatedblocks() - before)
    return min(found, key=abs)
