"""Declarations -> straight-line encoders and decoders, one pair per message and version.

For a (message, version) it writes Python source without a branch on the version in it: fields of fixed width that stand
together share one struct call, nested structs and arrays are unrolled in place, and compact forms are chosen here, not
at run time.

    decode(buffer, position, long_array) -> message      ProtocolError on anything that is not the message
    encode(message, each_of) -> list of chunks           struct.error, AttributeError: a mistake of ours

`long_array` makes the lists for arrays of LONG_ARRAY_MIN elements or more, and `each_of` iterates over such lists: by
them a broker lets others run in between.

The caller joins the chunks, or sends them with one sendmsg: record batches are never copied here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from korvet.errors import ProtocolError
from korvet.protocol.decoding import DecoderWriter
from korvet.protocol.encoding import EncoderWriter
from korvet.protocol.schema import Message
from korvet.protocol.wire import ELEMENTS_MAX, Buffer

Encode = Callable[..., list[Buffer]]
M = TypeVar("M", bound=Message)


def decode(
    cls: type[M],
    version: int,
    buffer: Buffer,
    position: int = 0,
    long_array: Callable[..., list[Any]] = list,
) -> M:
    """Decode a `cls` of `version` that begins at `position`; bytes after it are ignored, as in Kafka.

    Raises ProtocolError for short, negative or impossible lengths, long text that is not UTF-8, and null in a version
    that allows none.
    """
    try:
        message: M = decoder(cls, version)(buffer, position, long_array)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
    return message


def encode(
    message: Message, version: int, each_of: Callable[[Iterable[Any]], Iterable[Any]] = iter
) -> list[Buffer]:
    """Encode `message` in `version` to chunks.

    Raises ValueError if a field that `version` lacks, and that is not ignorable, holds more than its default.
    """
    return encoder(type(message), version)(message, each_of)


@cache
def decoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """Compile (once) the decoder of `cls` in `version`."""
    built: Callable[..., Any] = _write_decoder(cls, version).build(
        f"<{cls.__name__} v{version} decode>", "decode"
    )
    return built


@cache
def encoder(cls: type[Message], version: int) -> Encode:
    """Compile (once) the encoder of `cls` in `version`."""
    built: Encode = _write_encoder(cls, version).build(f"<{cls.__name__} v{version} encode>", "encode")
    return built


def source(cls: type[Message], version: int) -> tuple[str, str]:
    """Return the Python text of the decoder and of the encoder of `cls` in `version`, for people to read."""
    return _write_decoder(cls, version).text(), _write_encoder(cls, version).text()


def _write_decoder(cls: type[Message], version: int) -> DecoderWriter:
    writer = DecoderWriter(version, flexible=cls.api.is_flexible(version))
    with writer.block("def decode(buf, pos, long_array=list):"):
        writer.line("end = len(buf)")
        writer.line(f"elements_left = {ELEMENTS_MAX}")
        writer.line(f"return {writer.part(cls)}")
    return writer


def _write_encoder(cls: type[Message], version: int) -> EncoderWriter:
    writer = EncoderWriter(version, flexible=cls.api.is_flexible(version))
    with writer.block("def encode(m0, each_of=iter):"):
        writer.line("out = []")
        writer.line("w = out.append")
        writer.part(cls, "m0")
        writer.line("return out")
    return writer


def compile_served(messages: Iterable[type[Message]]) -> int:
    """Compile what a broker uses of `messages`: decoders of requests, encoders of responses.

    Returns how many codecs that made. Called before the fork: a mistake in a declaration ends the start (TypeError),
    and the workers share the memory.
    """
    made = 0
    for cls in messages:
        first, last = cls.api.versions
        for version in range(first, last + 1):
            (decoder if cls.is_request() else encoder)(cls, version)
            made += 1
    return made
