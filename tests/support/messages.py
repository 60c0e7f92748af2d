"""Messages made of mappings of the fields that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from korvet.protocol import schema
from korvet.protocol.schema import ListOf, Part, PartOf
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized

P = TypeVar("P", bound=Part)


def message(kind: type[P], given: Mapping[str, Any], version: int, scene: object = None) -> P:
    """Return a message, or a part of one, in a version.

    Parts are mappings; what is not named is null, zero or empty. A function in the place of a value gets the scene.
    """
    fields = schema.fields(kind)
    unknown = given.keys() - {field.name for field in fields}
    assert not unknown, f"{kind.__name__} has no {unknown}"
    values = {}
    for field in fields:
        if field.name in given and field.present(version):
            values[field.name] = _value(field.kind, given[field.name], version, scene)
        elif field.required:
            values[field.name] = None if field.nullable(version) else _zero(field.kind, version)
    return kind(**values)


def _value(wire: object, given: Any, version: int, scene: object) -> Any:
    if callable(given):
        given = given(scene)
    match wire:
        case ListOf(element) if given is not None:
            return [_value(element, argument, version, scene) for argument in given]
        case PartOf(part) if given is not None:
            return message(part, given, version, scene)
    return given


def _zero(wire: object, version: int) -> Any:
    match wire:
        case ListOf():
            return []
        case PartOf(part):
            return message(part, {}, version)
        case Sized("string"):
            return ""
        case Fixed("16s"):
            return ZERO_UUID
        case Sized():
            return b""
    return 0
