"""What a declaration says, read back as fields."""

from __future__ import annotations

from typing import Annotated

import pytest

from korvet.protocol.schema import VERSION_MAX, Api, ListOf, Message, Part, PartOf, Validity, fields, since
from korvet.protocol.wire import Fixed, Sized, int16, int32, string


class Inner(Part, kw_only=True):
    """A part of the message below."""

    number: int32


class ExampleRequest(Message, kw_only=True):
    """Every way to declare a field."""

    api = Api(key=998, versions=(0, 5), flexible=3)

    plain: int16
    text: string | None
    later: Annotated[int16, since(2, until=4, ignorable=True)] = -1
    late_null: Annotated[string | None, since(0, nullable=3)]
    parts: list[Inner]
    numbers: Annotated[list[int32] | None, since(1)] = None
    part: Annotated[Inner | None, since(2)] = None
    tagged: Annotated[Inner | None, since(3, tag=0)] = None


ROWS = {row.name: row for row in fields(ExampleRequest)}


def test_rows_are_in_the_order_of_the_declaration() -> None:
    assert list(ROWS) == ["plain", "text", "later", "late_null", "parts", "numbers", "part", "tagged"]


def test_a_row_knows_its_wire_type() -> None:
    assert ROWS["plain"].kind == Fixed("h")
    assert ROWS["text"].kind == Sized("string")
    assert ROWS["parts"].kind == ListOf(PartOf(Inner))
    assert ROWS["numbers"].kind == ListOf(Fixed("i"))
    assert ROWS["part"].kind == PartOf(Inner)


def test_a_row_knows_its_versions() -> None:
    assert ROWS["later"].validity == Validity(2, 4, ignorable=True)
    assert [version for version in range(7) if ROWS["later"].present(version)] == [2, 3, 4]
    assert ROWS["plain"].validity == Validity(0, VERSION_MAX)


def test_a_row_is_nullable_from_the_version_said_on() -> None:
    assert not ROWS["plain"].nullable(0)
    assert ROWS["text"].nullable(0)
    assert [version for version in range(5) if ROWS["late_null"].nullable(version)] == [3, 4]
    assert ROWS["numbers"].nullable(1)
    assert ROWS["part"].nullable(2)


def test_a_tagged_struct_is_left_out_and_not_null() -> None:
    assert not ROWS["tagged"].nullable(3)
    assert ROWS["tagged"].default is None


def test_a_row_knows_its_default() -> None:
    assert ROWS["plain"].required
    assert not ROWS["later"].required
    assert ROWS["later"].default == -1


def test_an_api_is_flexible_from_a_version_on() -> None:
    assert [ExampleRequest.api.is_flexible(version) for version in range(5)] == [False] * 3 + [True] * 2
    assert not Api(key=1, versions=(0, 9)).is_flexible(9)


def test_an_api_may_be_advertised_from_below_what_is_served() -> None:
    assert Api(key=1, versions=(3, 9)).advertised == (3, 9)
    assert Api(key=1, versions=(3, 9), advertised_from=0).advertised == (0, 9)


def test_a_response_shares_the_api_of_its_request_and_is_none() -> None:
    class ExampleResponse(Message, kw_only=True):
        pass

    assert ExampleRequest.is_request()
    assert not ExampleResponse.is_request()
    assert ExampleResponse.api is ExampleRequest.api


class UntypedRequest(Message, kw_only=True):
    """A mistake: Kafka has many kinds of int."""

    api = Api(key=997, versions=(0, 0))

    number: int


def test_a_field_without_a_wire_type_is_a_mistake() -> None:
    with pytest.raises(TypeError, match=r"UntypedRequest\.number has no wire type"):
        fields(UntypedRequest)
