"""The table of every API: rows of a request, what is set up before it, and its answer.

Requests and answers are mappings of the fields that matter. A field that a version lacks is left out of both, so one
row serves many versions; what a request does not name is null, zero or empty. In an answer a mapping in the place of a
list is its only element, and `a.b` is field `b` of field `a`. A function in the place of a value is called with the
scene, for what is known only then, as the id of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from korvet.errors import ErrorCode
from korvet.protocol import schema
from korvet.protocol.schema import Message, Part
from korvet.protocol.types import AclOperation, AclResourceType

if TYPE_CHECKING:
    from korvet.security.session import Session
    from tests.handlers.scene import Scene

Fields = dict[str, Any]
Right = tuple[AclOperation, AclResourceType] | tuple[AclOperation, AclResourceType, str]
"""A right on `orders`, `billing`, `tx` or the cluster, or on what it names itself."""

_ERRORS = {"error_code", "partition_error_code", "acknowledge_error_code"}


class Row(NamedTuple):
    """A request of an API with its answer.

    `at` is where the error stands in the answer, `versions` are the first and last one, all by default. With `rights`
    and no other ones the request is served, and each is asked for in this order; `refused` are the codes that a caller
    without any right gets, by default that of the first. `settings` are those of the broker. `also` are other errors in
    the same place, of other items of the request.
    """

    request: Fields
    answer: Fields = {}  # noqa: RUF012 - a tuple's default, which nobody changes
    error: ErrorCode = ErrorCode.NONE
    at: str = "error_code"
    versions: tuple[int, int] | None = None
    before: Callable[[Scene], object] = lambda _scene: None
    rights: Sequence[Right] = ()
    refused: Sequence[ErrorCode] | None = None
    settings: Fields = {}  # noqa: RUF012 - as above
    session: Callable[[Scene], Session] | None = None
    also: Sequence[ErrorCode] = ()


Rows = Mapping[type[Message], Sequence[Row]]


def errors(at: str, answer: Fields, *cases: tuple[Any, ...]) -> list[Row]:
    """Return rows of errors in one place: code and request of each, and versions and what is set up before, if any."""
    return [Row(request, answer, code, at, *more) for code, request, *more in cases]


def steps(*calls: Callable[[Scene], object]) -> Callable[[Scene], None]:
    """Return what sets up one thing after the other."""

    def call(scene: Scene) -> None:
        for step in calls:
            step(scene)

    return call


class Where(NamedTuple):
    """An answer's value of which not all is known before."""

    holds: Callable[[Any], object]


def said(text: str) -> Where:
    """Return what a message is that has a text in it."""
    return Where(lambda given: text in given)


def differences(wanted: Any, actual: Any, version: int, scene: Scene, path: str = "") -> Iterator[str]:
    """Yield where an answer is not as a row says; an empty mapping says nothing."""
    if callable(wanted) and not isinstance(wanted, Where):
        wanted = wanted(scene)
    if isinstance(wanted, Where):
        if not wanted.holds(actual):
            yield f"{path}: {actual!r}"
    elif isinstance(wanted, dict) and isinstance(actual, list):
        yield from _differences_of_lists([wanted], actual, version, scene, path)
    elif isinstance(wanted, dict):
        kind: type[Part] = type(actual)
        fields = {field.name: field for field in schema.fields(kind)}
        for names, value in wanted.items():
            name, _, below = names.partition(".")
            if fields[name].present(version):
                inner = {below: value} if below else value
                yield from differences(inner, getattr(actual, name), version, scene, f"{path}.{name}")
    elif isinstance(wanted, list):
        yield from _differences_of_lists(wanted, actual, version, scene, path)
    elif wanted != actual:
        yield f"{path}: {actual!r} is not {wanted!r}"


def _differences_of_lists(
    wanted: list[Any], actual: list[Any], version: int, scene: Scene, path: str
) -> Iterator[str]:
    if len(wanted) != len(actual):
        yield f"{path}: {actual!r} are not {len(wanted)}"
    for number, (value, element) in enumerate(zip(wanted, actual, strict=False)):
        yield from differences(value, element, version, scene, f"{path}.{number}")


def codes(answer: Any, path: str = "") -> dict[str, set[ErrorCode]]:
    """Return all errors in an answer by where they stand, at any depth."""
    result: dict[str, set[ErrorCode]] = {}
    if isinstance(answer, msgspec.Struct):
        for name, value in msgspec.structs.asdict(answer).items():
            below = f"{path}.{name}" if path else name
            if name in _ERRORS and value:
                result.setdefault(below, set()).add(ErrorCode(value))
            for place, errors in codes(value, below).items():
                result.setdefault(place, set()).update(errors)
    elif isinstance(answer, list):
        for element in answer:
            for place, errors in codes(element, path).items():
                result.setdefault(place, set()).update(errors)
    return result
