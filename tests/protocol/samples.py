"""Messages made from their declarations: filled, plain and with nulls, and Hypothesis strategies of the same rows.

Knows `rows()` and nothing of any particular message, so that a message declared tomorrow is tested too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from korvet.protocol.messages import MESSAGES
from korvet.protocol.schema import Kind, ListOf, Message, Part, PartOf, Row, rows
from korvet.protocol.wire import ZERO_UUID, Sized

VARIANTS = ("filled", "plain", "null")

RANGES = {
    "b": (-(2**7), 2**7 - 1),
    "h": (-(2**15), 2**15 - 1),
    "H": (0, 2**16 - 1),
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
}

VERSIONS = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in MESSAGES
    for version in range(cls.api.versions[0], cls.api.versions[1] + 1)
]
"""Every message in every version, as test parameters."""

LAST_OF_EACH_FORM = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in MESSAGES
    for version in sorted({cls.api.versions[1], (cls.api.flexible or 0) - 1})
    if version >= cls.api.versions[0]
]
"""Every message in its last plain and its last flexible version."""


def sample(cls: type[Message], version: int, variant: str = "filled") -> Message:
    """Return a `cls` whose every field of `version` is set as `variant` says.

    filled: nothing holds its default, arrays hold two elements. plain: everything does that has one, the rest is
    zero or empty. null: everything is null that may be, arrays hold one element. single: as filled, but for arrays
    of one element.
    """
    message: Message = _part(cls, version, variant, itertools.count(1))
    return message


def _part(cls: type[Any], version: int, variant: str, numbers: Iterator[int]) -> Any:
    values: dict[str, Any] = {}
    for row in rows(cls):
        if not row.present(version) or (variant == "plain" and not row.required):
            continue
        if variant == "null" and (row.nullable(version) or (row.optional and row.validity.tag is not None)):
            values[row.name] = None
        else:
            values[row.name] = _value(row.kind, version, variant, numbers, row.default)
    return cls(**values)


def _value(kind: Kind, version: int, variant: str, numbers: Iterator[int], default: Any) -> Any:
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


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Message]:
    """Return a strategy of any `cls` that `version` can carry."""
    return _parts(cls, version)


def _parts(cls: type[Part], version: int) -> st.SearchStrategy[Any]:
    present = [row for row in rows(cls) if row.present(version)]
    return st.builds(cls, **{row.name: _values_of_row(row, version) for row in present})


def _values_of_row(row: Row, version: int) -> st.SearchStrategy[Any]:
    values = _values(row.kind, version)
    absent = isinstance(row.kind, PartOf) and row.validity.tag is not None
    return st.none() | values if row.nullable(version) or absent else values


def _values(kind: Kind, version: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, PartOf):
        return _parts(kind.cls, version)
    if isinstance(kind, ListOf):
        return st.lists(_values(kind.element, version), max_size=3)
    if isinstance(kind, Sized):
        # Long enough for lengths of two varint bytes.
        return st.text(max_size=150) if kind.kind == "string" else st.binary(max_size=150)
    return _fixed_values(kind.code)


def _fixed_values(code: str) -> st.SearchStrategy[Any]:
    if code == "?":
        return st.booleans()
    if code == "d":
        return st.floats(allow_nan=False)
    if code == "16s":
        return st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16)
    return st.integers(*RANGES[code])
