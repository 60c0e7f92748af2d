"""Writes encoders: straight-line functions from a message to the chunks of one version.

Knows how each wire type is written, and Kafka's rule that no value is dropped silently. Nothing of any
particular message.
"""

from __future__ import annotations

import struct

from korvet.protocol.schema import Kind, ListOf, Part, PartOf, Row
from korvet.protocol.source import Source, codes_of
from korvet.protocol.wire import Fixed, Sized


class EncoderSource(Source):
    """Writes encoders. `out` is the list of chunks and `w` its append in every function built."""

    def part(self, cls: type[Part], value: str) -> None:
        """Write the encoding of the `cls` that the expression `value` names."""
        plain, tagged, absent = self.split(cls)
        for row in absent:
            if not row.validity.ignorable:
                self._refuse_loss(row, value)
        for run in self.runs(plain):
            if isinstance(run[0].kind, Fixed):
                layout, _ = self.layout(codes_of(run))
                self.line(f"w({layout}.pack({', '.join(f'{value}.{row.name}' for row in run)}))")
            else:
                self._value(run[0].kind, f"{value}.{run[0].name}", nullable=run[0].nullable(self.version))
        if self.flexible:
            self._tagged_fields(tagged, value)

    def _refuse_loss(self, row: Row, value: str) -> None:
        """Write the refusal to drop a value without a word, which only ignorable fields allow."""
        unchanged = f"== {self.constant('D', row.default)}" if row.default is not None else "is None"
        self.line(f"if not {value}.{row.name} {unchanged}:")
        self.line(f"    raise ValueError('version {self.version} has no field {row.name}')")

    def _tagged_fields(self, tagged: list[Row], value: str) -> None:
        if not tagged:
            self.line("w(b'\\0')")
            return
        tags = self.name("tags")
        self.line(f"{tags} = []")
        for row in tagged:
            held = self.name("m")
            self.line(f"{held} = {value}.{row.name}")
            unset = "is None" if row.default is None else f"== {self.constant('D', row.default)}"
            self.line(f"if not {held} {unset}:")
            self.depth += 1
            outer = self.name("outer")
            self.line(f"{outer} = out; out = []; w = out.append")
            self._value(row.kind, held, nullable=row.nullable(self.version))
            self.line(f"{tags}.append(({row.validity.tag}, b''.join(out)))")
            self.line(f"out = {outer}; w = out.append")
            self.depth -= 1
        self.line(f"w(varint(len({tags})))")
        self.line(f"for tag, content in {tags}:")
        self.line("    w(varint(tag)); w(varint(len(content))); w(content)")

    def _value(self, kind: Kind, expression: str, *, nullable: bool) -> None:
        if isinstance(kind, Fixed):
            layout, _ = self.layout(kind.code)
            self.line(f"w({layout}.pack({expression}))")
            return
        value = self.name("m")
        self.line(f"{value} = {expression}")
        if nullable:
            self.line(f"if {value} is None: w({self._null(kind)})")
            self.line("else:")
            self.depth += 1
            if isinstance(kind, PartOf):
                self.line("w(b'\\x01')")
        if isinstance(kind, Sized):
            if kind.kind == "string":
                self.line(f"{value} = {value}.encode()")
            self._length(value, "h" if kind.kind == "string" else "i")
            self.line(f"w({value})")
        elif isinstance(kind, ListOf):
            self._list(kind, value)
        else:
            self.part(kind.cls, value)
        self.depth -= nullable

    def _list(self, kind: ListOf, value: str) -> None:
        self._length(value, "i")
        if isinstance(kind.element, Fixed):
            packed = f"struct_pack('>%d{kind.element.code}' % len({value}), *{value})"
            self.constants["struct_pack"] = struct.pack
            if kind.element.code == "16s":
                packed = f"b''.join({value})"
            self.line(f"w({packed})")
            return
        element = self.name("m")
        self.line(f"for {element} in {value}:")
        self.depth += 1
        self._value(kind.element, element, nullable=False)
        self.depth -= 1

    def _length(self, value: str, code: str) -> None:
        if self.flexible:
            self.line(f"w(varint(len({value}) + 1))")
        else:
            self.line(f"w({self.layout(code)[0]}.pack(len({value})))")

    def _null(self, kind: Kind) -> str:
        if isinstance(kind, PartOf):
            return "b'\\xff'"
        if self.flexible:
            return "b'\\0'"
        width = 2 if isinstance(kind, Sized) and kind.kind == "string" else 4
        return repr(b"\xff" * width)
