"""Messages made from their declarations, so that a new one is tested too: filled, plain, with nulls, and random."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from korvet.protocol.messages import all_messages
from korvet.protocol.schema import Field, ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized

VARIANTS = ("filled", "plain", "null")

RANGES = {
    "b": (-(2**7), 2**7 - 1),
    "h": (-(2**15), 2**15 - 1),
    "H": (0, 2**16 - 1),
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
}

EVERY_MESSAGE = pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)

CHARACTERS = "az09-.\0\x7f\u00e9\u20ac\uffff\U0001f600"
"""Of one to four bytes in UTF-8."""

LAST_OF_EACH_FORM = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in all_messages()
    for version in sorted({cls.api.versions[1], (cls.api.flexible or 0) - 1})
    if version >= cls.api.versions[0]
]
"""Every message in its last plain and its last flexible version."""


def versions(cls: type[Message]) -> range:
    """Return the versions of a message that are served."""
    first, last = cls.api.versions
    return range(first, last + 1)


def sample(cls: type[Message], version: int, variant: str = "filled") -> Message:
    """Return a `cls` whose every field of `version` is set as `variant` says.

    filled: nothing holds its default, arrays hold two elements. plain: everything does that has one, the rest is
    zero or empty. null: everything is null that may be, arrays hold one element. single: as filled, but for arrays
    of one element.
    """
    message: Message = _part(cls, version, variant, itertools.count(1))
    return message


def _part(cls: type[Part], version: int, variant: str, numbers: Iterator[int]) -> Any:
    values: dict[str, Any] = {}
    for row in fields(cls):
        if not row.present(version) or (variant == "plain" and not row.required):
            continue
        if variant == "null" and (row.nullable(version) or (row.optional and row.validity.tag is not None)):
            values[row.name] = None
        else:
            values[row.name] = _value(row.kind, version, variant, numbers, row.default)
    return cls(**values)


def _value(kind: WireType, version: int, variant: str, numbers: Iterator[int], default: Any) -> Any:
    if isinstance(kind, PartOf):
        return _part(kind.cls, version, variant, numbers)
    if isinstance(kind, ListOf):
        length = {"filled": 2, "single": 1, "null": 1, "plain": 0}[variant]
        return [_value(kind.element, version, variant, numbers, None) for _ in range(length)]
    number = 0 if variant == "plain" else next(numbers)
    if isinstance(kind, Sized):
        text = f"name-{number}-\N{EURO SIGN}" if number else ""
        return text if kind.kind == "string" else text.encode()
    return _fixed(kind.code, number, default)


def _fixed(code: str, number: int, default: Any) -> Any:
    if code == "?":
        return not default if number else False
    if code == "d":
        return number + 0.5 if number else 0.0
    if code == "16s":
        return number.to_bytes(16, "big")
    low, high = RANGES[code]
    # Both ends and both signs turn up; a default is never hit, since none lies there.
    return 0 if not number else high - number if number % 2 or low == 0 else low + number


def random_message(cls: type[Message], version: int, rng: Random) -> Message:
    """Return any `cls` that `version` can carry."""
    message: Message = _random_part(cls, version, rng)
    return message


def _random_part(cls: type[Part], version: int, rng: Random) -> Any:
    return cls(**{row.name: _random_field(row, version, rng) for row in fields(cls) if row.present(version)})


def _random_field(row: Field, version: int, rng: Random) -> Any:
    absent = isinstance(row.kind, PartOf) and row.validity.tag is not None
    if (row.nullable(version) or absent) and rng.random() < 0.25:
        return None
    # Defaults of tagged fields are not written at all.
    if row.validity.tag is not None and not row.required and rng.random() < 0.25:
        return row.default
    return _random_value(row.kind, version, rng)


def _random_value(kind: WireType, version: int, rng: Random) -> Any:
    if isinstance(kind, PartOf):
        return _random_part(kind.cls, version, rng)
    if isinstance(kind, ListOf):
        # Beyond SHORT_ARRAY_MAX where elements are numbers: these have another layout.
        most = 12 if isinstance(kind.element, Fixed) else 3
        return [_random_value(kind.element, version, rng) for _ in range(rng.randint(0, most))]
    if isinstance(kind, Sized):
        # Long enough for lengths of two varint bytes.
        length = rng.choice((0, 1, 2, rng.randint(0, 150)))
        return "".join(rng.choices(CHARACTERS, k=length)) if kind.kind == "string" else rng.randbytes(length)
    return _random_fixed(kind.code, rng)


def _random_fixed(code: str, rng: Random) -> Any:
    if code == "?":
        return rng.random() < 0.5
    if code == "d":
        return rng.choice((0.0, -0.0, 5e-324, float("inf"), rng.uniform(-1e9, 1e9)))
    if code == "16s":
        return rng.choice((ZERO_UUID, rng.randbytes(16)))
    low, high = RANGES[code]
    return rng.choice((low, high, 0, 1, max(low, -1), rng.randint(low, high)))
