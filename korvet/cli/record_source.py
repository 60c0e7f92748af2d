"""Pieces of standard input or of files, as records are made of them: lines, what lies between null bytes, or all.

Knows bytes and where they stood; nothing of Kafka. A terminal or a pipe is waited for without a thread, so that Ctrl-C
ends a wait at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import NamedTuple

PIECE_BYTES_MAX = 64 << 20
"""More than a record of Kafka can well be: a piece without an end must not fill the memory."""

_READ_BYTES = 1 << 18


class Piece(NamedTuple):
    """Some bytes, and where they stood, for a message."""

    content: bytes
    place: str


class SourceError(Exception):
    """What cannot be read, or is too large; the text says where."""


async def pieces(names: tuple[str, ...], delimiter: bytes | None) -> AsyncIterator[list[Piece]]:
    """Yield the pieces of files one after the other, "-" being standard input, as many at once as were read.

    `delimiter` ends each piece, the last one may lack it; None makes each file one piece. Raises SourceError.
    """
    for name in names:
        title = "" if name == "-" else f"{name}: "
        try:
            descriptor = 0 if name == "-" else os.open(name, os.O_RDONLY)
        except OSError as error:
            raise SourceError(f"{name}: {error.strerror}") from error
        try:
            async for some in _pieces(descriptor, title, delimiter):
                yield some
        except OSError as error:
            raise SourceError(f"{title or 'standard input: '}{error.strerror}") from error
        finally:
            if descriptor:
                os.close(descriptor)


async def _pieces(descriptor: int, title: str, delimiter: bytes | None) -> AsyncIterator[list[Piece]]:
    word = "line" if delimiter == b"\n" else "record"
    number, rest = 0, bytearray()
    async for chunk in _chunks(descriptor):
        if delimiter is None or delimiter not in chunk:
            rest += chunk
            if len(rest) > PIECE_BYTES_MAX:
                raise SourceError(f"{title}{word} {number + 1}: longer than {PIECE_BYTES_MAX >> 20} MiB")
            continue
        *whole, left = (bytes(rest) + chunk).split(delimiter)
        rest = bytearray(left)
        yield [Piece(each, f"{title}{word} {number + index}") for index, each in enumerate(whole, 1)]
        number += len(whole)
    if rest or delimiter is None:
        yield [Piece(bytes(rest), f"{title}{word} {number + 1}")]


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    while chunk := await _read(descriptor):
        yield chunk


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        # A regular file: it is always ready, and epoll does not take it.
        await asyncio.sleep(0)
    else:
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    return os.read(descriptor, _READ_BYTES)
