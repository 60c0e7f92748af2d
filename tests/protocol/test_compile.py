"""What the compiler makes of declarations, and what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import greenlet
import pytest

from korvet.errors import ProtocolError
from korvet.protocol.compile import codec, compile_served, decode, encode, encode_part
from korvet.protocol.schema import Api, Message, Part, fields, since
from korvet.protocol.wire import (
    ZERO_UUID,
    boolean,
    bytestring,
    float64,
    int8,
    int16,
    int32,
    int64,
    record_pieces,
    string,
    uint16,
    uint32,
    uuid,
)


class Address(Part, kw_only=True):
    """A struct that may be null."""

    host: string
    port: int32


class ThingRequest(Message, kw_only=True):
    """Fields that come and go."""

    api = Api(key=996, versions=(0, 3), flexible=2)

    kept: int16
    gone: Annotated[int16, since(0, until=0)] = 0
    ignored: Annotated[string | None, since(1, ignorable=True)] = None
    strict: Annotated[list[int32], since(1)] = []  # noqa: RUF012 - msgspec gives every message its own
    address: Annotated[Address | None, since(1)] = None
    tagged: Annotated[int32, since(2, tag=0)] = 7
    tagged_part: Annotated[Address | None, since(3, tag=1)] = None


class KindsResponse(Message, kw_only=True):
    """Every wire type, alone and in arrays."""

    api = Api(key=995, versions=(0, 1), flexible=1)

    small: int8
    unsigned: uint16
    wide: uint32
    long: int64
    real: float64
    flag: boolean
    id: uuid
    raw: bytestring | None
    smalls: list[int8]
    wides: list[int64]
    flags: list[boolean]
    ids: list[uuid]
    raws: list[bytestring]
    texts: list[string]


class TaggedBytesRequest(Message, kw_only=True):
    """Values that are passed on elsewhere, in tagged fields."""

    api = Api(key=993, versions=(0, 0), flexible=0)

    before: int16
    raw: Annotated[bytestring, since(0, tag=0)] = b""
    records: Annotated[record_pieces | None, since(0, tag=1)] = None


class ForgottenDefaultRequest(Message, kw_only=True):
    """A mistake: version 0 has no such field, and nothing to set it to."""

    api = Api(key=994, versions=(0, 1))

    late: Annotated[int16, since(1)]


class ForgottenDefaultResponse(Message, kw_only=True):
    """The same mistake on the way out."""

    late: Annotated[int16, since(1)]


class UntypedRequest(Message, kw_only=True):
    """A mistake: Kafka has many kinds of int."""

    api = Api(key=997, versions=(0, 0))

    number: int


KINDS: dict[str, Any] = {
    "small": -128,
    "unsigned": 65535,
    "wide": 2**32 - 1,
    "long": -(2**63),
    "real": -0.5,
    "flag": True,
    "id": bytes(range(16)),
}
NO_ARRAYS: dict[str, Any] = {name: [] for name in ("smalls", "wides", "flags", "ids", "raws", "texts")}


def bytes_of(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


@pytest.mark.parametrize("cls", [ForgottenDefaultRequest, ForgottenDefaultResponse])
def test_a_field_without_default_that_a_version_lacks_is_found_at_the_start(cls: type[Message]) -> None:
    with pytest.raises(TypeError, match=r"\.late has no default but is absent in v0"):
        compile_served([cls])


def test_a_field_without_a_wire_type_is_a_mistake() -> None:
    with pytest.raises(TypeError, match=r"UntypedRequest\.number has no wire type"):
        fields(UntypedRequest)


def test_a_value_that_a_version_cannot_carry_is_refused() -> None:
    for message, version, name in (
        (ThingRequest(kept=1, strict=[1]), 0, "strict"),
        (ThingRequest(kept=1, gone=1), 1, "gone"),
        (ThingRequest(kept=1, address=Address(host="", port=0)), 0, "address"),
        (ThingRequest(kept=1, tagged=8), 1, "tagged"),
        (ThingRequest(kept=1, tagged_part=Address(host="", port=0)), 2, "tagged_part"),
    ):
        with pytest.raises(ValueError, match=f"version {version} has no field {name}"):
            encode(message, version)


def test_an_ignorable_value_is_dropped_without_a_word() -> None:
    message = ThingRequest(kept=1, ignored="nobody reads this")
    assert decode(ThingRequest, 0, bytes_of(message, 0)) == ThingRequest(kept=1)


def test_tagged_fields_in_any_order_are_read() -> None:
    part = b"\x01\x07\x02h" + struct.pack(">i", 2) + b"\x00"
    number = b"\x00\x04\x00\x00\x00\x08"
    content = struct.pack(">hbbb", 1, 0, 1, -1) + b"\x02" + part + number
    read = decode(ThingRequest, 3, content)
    assert read == ThingRequest(kept=1, tagged=8, tagged_part=Address(host="h", port=2))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("length", [0, 1, 2, 5000])
def test_every_wire_type_comes_back(version: int, length: int) -> None:
    message = KindsResponse(
        **KINDS,
        raw=b"x" * length,
        smalls=[-1] * length,
        wides=[2**62] * length,
        flags=[True] * length,
        ids=[bytes(range(16)), ZERO_UUID] * length,
        raws=[b"", b"\x00"] * length,
        texts=["", "\N{SNOWMAN}"] * length,
    )
    assert decode(KindsResponse, version, bytes_of(message, version)) == message


@pytest.mark.parametrize(
    "wrong",
    [{"kept": 2**15}, {"kept": -(2**15) - 1}, {"kept": None}, {"kept": "1"}, {"kept": 1, "strict": [2**31]}],
)
def test_a_value_that_its_type_cannot_be_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        encode(ThingRequest(**wrong), 2)


def test_what_is_null_without_being_nullable_is_an_error() -> None:
    with pytest.raises(TypeError):
        encode(ThingRequest(kept=1, address=Address(host=None, port=1)), 1)  # type: ignore[arg-type]  # that is the mistake


def test_long_values_of_bytes_are_passed_on_as_they_are() -> None:
    long, short = bytes(5000), b"raw"
    message = KindsResponse(**KINDS | NO_ARRAYS | {"raws": [short, long]}, raw=long)
    chunks = encode(message, 1)
    assert [chunk is long for chunk in chunks] == [False, True, False, True, False]
    assert decode(KindsResponse, 1, b"".join(chunks)) == message


@pytest.mark.parametrize("size", [1, 5000])
@pytest.mark.parametrize("pieces", [1, 2])
def test_tagged_bytes_and_records_lie_within_their_fields(size: int, pieces: int) -> None:
    part = memoryview(bytes(size))
    sent = TaggedBytesRequest(before=9, raw=bytes(part), records=part if pieces == 1 else [part, part])
    read = decode(TaggedBytesRequest, 0, bytes_of(sent, 0))
    assert read == TaggedBytesRequest(before=9, raw=bytes(size), records=memoryview(bytes(size * pieces)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_part_may_be_given_as_its_bytes(version: int) -> None:
    address = Address(host="broker.example", port=9092)
    in_bytes: Any = encode_part(address, ThingRequest, version)
    plain, given = (
        ThingRequest(kept=1, address=item, tagged_part=item if version == 3 else None)
        for item in (address, in_bytes)
    )
    assert bytes_of(given, version) == bytes_of(plain, version)


def test_long_arrays_are_made_and_gone_through_by_the_callers_functions() -> None:
    made: list[Longer] = []

    class Longer(list[Any]):
        def __init__(self) -> None:
            made.append(self)

    gone_through = []

    def each_of(items: Iterable[Any]) -> Iterator[Any]:
        gone_through.append(list(items))
        return iter(gone_through[-1])

    message = KindsResponse(
        **KINDS | NO_ARRAYS | {"raw": None, "smalls": [1] * 64, "texts": ["x"] * 64, "wides": [1] * 63}
    )
    content = b"".join(encode(message, 1, each_of))
    assert gone_through == [message.smalls, message.texts]
    read = decode(KindsResponse, 1, content, 0, Longer)
    assert read == message
    assert [made[0] is read.smalls, made[1] is read.texts, len(made)] == [True, True, 2]


def test_greenlets_decode_and_encode_in_turns_and_one_may_be_killed_meanwhile() -> None:
    main = greenlet.getcurrent()

    class InTurns(list[Any]):
        def append(self, item: object) -> None:
            main.switch()
            super().append(item)

    def each_of(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            main.switch()
            yield item

    def come_back(message: KindsResponse) -> KindsResponse:
        return decode(KindsResponse, 1, b"".join(encode(message, 1, each_of)), 0, InTurns)

    def message(texts: int) -> KindsResponse:
        return KindsResponse(**KINDS | NO_ARRAYS | {"texts": ["x"] * texts}, raw=None)

    messages = [message(texts) for texts in (300, 64, 150)]
    running = {number: greenlet.greenlet(come_back) for number in range(3)}
    killed = greenlet.greenlet(come_back)
    done = {number: running[number].switch(messages[number]) for number in running}
    for turn in range(700):
        for number, entry in running.items():
            if not entry.dead:
                done[number] = entry.switch()
        if turn < 400:
            killed.switch(*[messages[0]] * (turn == 0))
    killed.throw()
    assert list(done.values()) == messages
    assert killed.dead


def test_codecs_are_compiled_once() -> None:
    assert codec(ThingRequest, 1) is codec(ThingRequest, 1)


def test_the_start_compiles_codecs_of_every_version() -> None:
    assert compile_served([ThingRequest, KindsResponse]) == 4 + 2


def test_bytes_behind_the_message_are_ignored() -> None:
    content = bytes_of(ThingRequest(kept=5), 0)
    assert decode(ThingRequest, 0, b"xx" + content + b"yy", 2).kept == 5


def test_an_error_names_message_and_version() -> None:
    with pytest.raises(ProtocolError, match="ThingRequest v0: "):
        decode(ThingRequest, 0, b"\x00")
