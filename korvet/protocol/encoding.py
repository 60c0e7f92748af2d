"""Writes encoders: straight-line functions from a message to the chunks of one version.

Kafka's rule holds: no value is dropped silently.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from korvet.protocol.schema import Field, ListOf, Part, PartOf, WireType
from korvet.protocol.source import FunctionWriter, codes_of
from korvet.protocol.wire import (
    LONG_ARRAY_MIN,
    SHORT_ARRAY_MAX,
    SMALL_VARINTS,
    Fixed,
    Sized,
    encode_varint,
)


class EncoderWriter(FunctionWriter):
    """Writes encoders. `out` is the list of chunks and `w` its append in every function built."""

    def part(self, cls: type[Part], value: str) -> None:
        """Write the encoding of the `cls` that the expression `value` names."""
        plain, tagged, absent = self.split(cls)
        for row in absent:
            # Only an ignorable field may lose its value silently.
            if not row.validity.ignorable:
                self.line(f"if not {self._is_default(row, f'{value}.{row.name}')}:")
                self.line(f"    raise ValueError('version {self.version} has no field {row.name}')")
        for run in self.runs(plain):
            if isinstance(run[0].kind, Fixed):
                layout, _ = self.layout(codes_of(run))
                self.line(f"w({layout}.pack({', '.join(f'{value}.{row.name}' for row in run)}))")
            else:
                self._value(run[0].kind, f"{value}.{run[0].name}", nullable=run[0].nullable(self.version))
        if self.flexible:
            self._tagged_fields(tagged, value)

    def _is_default(self, row: Field, value: str) -> str:
        return f"{value} is None" if row.default is None else f"{value} == {self.constant('D', row.default)}"

    def _tagged_fields(self, tagged: list[Field], value: str) -> None:
        if not tagged:
            self.line("w(b'\\0')")
            return
        held = [self.name("m") for _ in tagged]
        for name, row in zip(held, tagged, strict=True):
            self.line(f"{name} = {value}.{row.name}")
        unset = [self._is_default(row, name) for name, row in zip(held, tagged, strict=True)]
        # Nearly always there is none.
        self.line(f"if {' and '.join(unset)}: w(b'\\0')")
        with self.block("else:"):
            tags = self.name("tags")
            self.line(f"{tags} = []")
            for name, row, test in zip(held, tagged, unset, strict=True):
                with self.block(f"if not {test}:"):
                    outer = self.name("outer")
                    self.line(f"{outer} = out; out = []; w = out.append")
                    self._value(row.kind, name, nullable=row.nullable(self.version))
                    self.line(f"{tags}.append(({row.validity.tag}, b''.join(out)))")
                    self.line(f"out = {outer}; w = out.append")
            self.line(f"w(varint(len({tags})))")
            self.line(f"for tag, content in {tags}:")
            self.line("    w(varint(tag)); w(varint(len(content))); w(content)")

    def _value(self, kind: WireType, expression: str, *, nullable: bool) -> None:
        if isinstance(kind, Fixed):
            layout, _ = self.layout(kind.code)
            self.line(f"w({layout}.pack({expression}))")
            return
        value = self.name("m")
        self.line(f"{value} = {expression}")
        if nullable:
            self.line(f"if {value} is None: w({self._null(kind)})")
        with self.block("else:", when=nullable):
            if isinstance(kind, Sized):
                self._sized(kind, value)
            elif isinstance(kind, ListOf):
                self._list(kind, value)
            else:
                if nullable:
                    self.line("w(b'\\x01')")
                self.part(kind.cls, value)

    def _sized(self, kind: Sized, value: str) -> None:
        if kind.kind == "records":
            pieces = self.name("pieces")
            self.line(f"{pieces} = {value} if type({value}) is list else ({value},)")
            self._length(f"sum(map(len, {pieces}))", "i")
            self.line(f"out += {pieces}")
            return
        if kind.kind == "string":
            self.line(f"{value} = {value}.encode()")
        self._length(f"len({value})", "h" if kind.kind == "string" else "i")
        self.line(f"w({value})")

    def _list(self, kind: ListOf, value: str) -> None:
        if isinstance(kind.element, Fixed):
            packed = self.constant("array_of", _array_encoder(kind.element.code, flexible=self.flexible))
            self.line(f"w({packed}({value}))")
            return
        self._length(f"len({value})", "i")
        element = self.name("m")
        self.line(f"if len({value}) >= {LONG_ARRAY_MIN}: {value} = each_of({value})")
        with self.block(f"for {element} in {value}:"):
            self._value(kind.element, element, nullable=False)

    def _length(self, expression: str, code: str) -> None:
        if self.flexible:
            length = self.name("n")
            self.line(f"{length} = {expression} + 1")
            self.line(f"w(small[{length}] if {length} < {len(SMALL_VARINTS)} else varint({length}))")
        else:
            self.line(f"w({self.layout(code)[0]}.pack({expression}))")

    def _null(self, kind: WireType) -> str:
        if isinstance(kind, PartOf):
            return "b'\\xff'"
        if self.flexible:
            return "b'\\0'"
        width = 2 if isinstance(kind, Sized) and kind.kind == "string" else 4
        return repr(b"\xff" * width)


class ArrayEncoder:
    """Encodes an array of one fixed-width type, whose struct letter is `code`, with its length, in one call."""

    def __init__(self, code: str, *, flexible: bool) -> None:
        self._code = code
        self._flexible = flexible
        # Most arrays are replica lists: a few numbers.
        self._short = [
            (
                encode_varint(count + 1) if flexible else struct.pack(">i", count),
                struct.Struct(">" + code * count).pack,
            )
            for count in range(SHORT_ARRAY_MAX + 1)
        ]

    def __call__(self, values: Sequence[Any]) -> bytes:
        """Return the length and the values."""
        count = len(values)
        if count <= SHORT_ARRAY_MAX:
            head, pack = self._short[count]
            return head + pack(*values)
        head = encode_varint(count + 1) if self._flexible else struct.pack(">i", count)
        repeated = f"{count}{self._code}" if len(self._code) == 1 else self._code * count
        return head + struct.Struct(">" + repeated).pack(*values)


_array_encoder = cache(ArrayEncoder)
