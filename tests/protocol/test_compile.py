"""What the compiler makes of declarations, and what it refuses."""

from __future__ import annotations

import struct
from typing import Annotated

import pytest

from korvet.errors import ProtocolError
from korvet.protocol.compile import compile_served, decode, decoder, encode, encoder
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
        small=-128,
        unsigned=65535,
        wide=2**32 - 1,
        long=-(2**63),
        real=-0.5,
        flag=True,
        id=bytes(range(16)),
        raw=b"x" * length,
        smalls=[-1] * length,
        wides=[2**62] * length,
        flags=[True] * length,
        ids=[bytes(range(16)), ZERO_UUID] * length,
        raws=[b"", b"\x00"] * length,
        texts=["", "\N{SNOWMAN}"] * length,
    )
    assert decode(KindsResponse, version, bytes_of(message, version)) == message


def test_codecs_are_compiled_once() -> None:
    assert decoder(ThingRequest, 1) is decoder(ThingRequest, 1)
    assert encoder(ThingRequest, 1) is encoder(ThingRequest, 1)


def test_the_start_compiles_decoders_of_requests_and_encoders_of_responses() -> None:
    assert compile_served([ThingRequest, KindsResponse]) == 4 + 2


def test_bytes_behind_the_message_are_ignored() -> None:
    content = bytes_of(ThingRequest(kept=5), 0)
    assert decode(ThingRequest, 0, b"xx" + content + b"yy", 2).kept == 5


def test_an_error_names_message_and_version() -> None:
    with pytest.raises(ProtocolError, match="ThingRequest v0: "):
        decode(ThingRequest, 0, b"\x00")


def test_a_traceback_of_compiled_code_names_message_and_version() -> None:
    assert encoder(ThingRequest, 2).__code__.co_filename == "<ThingRequest v2 encode>"
