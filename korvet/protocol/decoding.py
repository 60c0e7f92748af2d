"""Writes decoders: straight-line functions from the bytes of one version to a message.

Everything in a hostile frame is checked as it is read: lengths below zero or past the end, counts that no frame could
hold.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from korvet.protocol import wire
from korvet.protocol.schema import Field, ListOf, Part, PartOf, WireType
from korvet.protocol.source import FunctionWriter, codes_of
from korvet.protocol.wire import LONG_ARRAY_MIN, SHORT_ARRAY_MAX, Buffer, Fixed, Sized


class DecoderWriter(FunctionWriter):
    """Writes decoders. `buf`, `pos` and `end` are the locals of every function built."""

    def part(self, cls: type[Part]) -> str:
        """Write the decoding of a `cls`; returns the expression that makes it."""
        plain, tagged, _ = self.split(cls)
        values: dict[str, str] = {}
        for run in self.runs(plain):
            if isinstance(run[0].kind, Fixed):
                layout, size = self.layout(codes_of(run))
                names = [self.name("v") for _ in run]
                self.line(f"{', '.join(names)}, = {layout}.unpack_from(buf, pos)")
                self.line(f"pos += {size}")
                values.update(zip((row.name for row in run), names, strict=True))
            else:
                values[run[0].name] = self._field(run[0])
        if self.flexible:
            self._tagged_fields(tagged, values)
        arguments = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{self.constant('T', cls)}({arguments})"

    def _tagged_fields(self, tagged: list[Field], values: dict[str, str]) -> None:
        """Write the reading of a block of tagged fields, which is nearly always a single zero byte."""
        if not tagged:
            self.line("if buf[pos]: pos = skip_tagged(buf, pos)")
            self.line("else: pos += 1")
            return
        for row in tagged:
            values[row.name] = self.name("v")
            # Each message gets its own list: if messages shared one, any of them could change it for all.
            default = "[]" if row.default == [] else self.constant("D", row.default)
            self.line(f"{values[row.name]} = {default}")
        count, tag, size, stop = (self.name(each) for each in ("n", "tag", "size", "stop"))
        with self.block("if buf[pos]:"):
            self.line(f"{count}, pos = read_tag_count(buf, pos)")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, pos = read_varint(buf, pos)")
                self.line(f"{size}, pos = read_varint(buf, pos)")
                self.line(f"{stop} = pos + {size}")
                self.line(f"if {stop} > end: short({stop}, buf)")
                for index, row in enumerate(tagged):
                    with self.block(f"{'el' if index else ''}if {tag} == {row.validity.tag}:"):
                        self.line(f"{values[row.name]} = {self._field(row)}")
                        # Fields read past their size could be read again and again: the square of the frame in work.
                        self.line(f"if pos != {stop}: bad_tag({row.name!r}, {size}, pos - {stop} + {size})")
                # Unknown tags are skipped (KIP-482).
                self.line(f"else: pos = {stop}")
        self.line("else: pos += 1")

    def _field(self, row: Field) -> str:
        """Write the decoding of one field; returns the expression that holds it."""
        return self._value(row.kind, row.name, nullable=row.nullable(self.version))

    def _value(self, kind: WireType, name: str, *, nullable: bool) -> str:
        if isinstance(kind, Fixed):
            return self._number(kind.code)
        value = self.name("v")
        if isinstance(kind, Sized):
            self._sized(kind, name, value, nullable=nullable)
        elif isinstance(kind, ListOf):
            self._list(kind, name, value, nullable=nullable)
        else:
            self._part(kind, value, nullable=nullable)
        return value

    def _length(
        self, name: str, code: str, *, nullable: bool, long: bool = False, string: bool = False
    ) -> str:
        """Write the reading of a length or count: a negative one is null, for `nullable` alone; `long` is above 127.

        That of a `string` is in flexible versions too no larger than an int16.
        """
        if self.flexible:
            length = self.name("n")
            self.line(f"{length} = buf[pos]")
            self.line(f"if {length} < 128: pos += 1")
            if long:
                self.line(f"elif buf[pos + 1] < 128: {length} += (buf[pos + 1] << 7) - 128; pos += 2")
            self.line(f"else: {length}, pos = {'read_string_length' if string else 'read_length'}(buf, pos)")
            self.line(f"{length} -= 1")
        else:
            length = self._number(code)
        if not nullable:
            self.line(f"if {length} < 0: bad_length({name!r}, {length})")
        return length

    def _sized(self, kind: Sized, name: str, value: str, *, nullable: bool) -> None:
        string = kind.kind == "string"
        length = self._length(
            name, "h" if string else "i", nullable=nullable, long=kind.kind == "records", string=string
        )
        stop = self.name("stop")
        taken = {
            "string": f"str(buf[pos:{stop}], 'utf-8', {wire.REPLACE_MALFORMED!r})",
            "bytes": f"bytes(buf[pos:{stop}])",
            "records": f"memoryview(buf)[pos:{stop}]",
        }[kind.kind]
        with self._unless_null(length, value, nullable=nullable):
            self.line(f"{stop} = pos + {length}")
            self.line(f"if {stop} > end: short({stop}, buf)")
            self.line(f"{value} = {taken}")
            self.line(f"pos = {stop}")

    def _list(self, kind: ListOf, name: str, value: str, *, nullable: bool) -> None:
        count = self._length(name, "i", nullable=nullable)
        with self._unless_null(count, value, nullable=nullable):
            # Every element takes a byte at least, so a count beyond the rest of the frame is a lie. `elements_left`
            # is what the arrays of this message may still hold: nested ones could otherwise multiply.
            self.line(f"if {count} > end - pos or {count} > elements_left: bad_length({name!r}, {count})")
            self.line(f"elements_left -= {count}")
            if isinstance(kind.element, Fixed):
                layout = self.constant("array_of", _array_decoder(kind.element.code))
                self.line(f"{value}, pos = {layout}(buf, pos, {count})")
                self.line(f"if {count} >= {LONG_ARRAY_MIN}: {value} = long_array({value})")
                return
            self.line(f"{value} = [] if {count} < {LONG_ARRAY_MIN} else long_array()")
            with self.block(f"for _ in range({count}):"):
                element = self._value(kind.element, name, nullable=False)
                self.line(f"{value}.append({element})")

    def _part(self, kind: PartOf, value: str, *, nullable: bool) -> None:
        present = self._number("b") if nullable else ""
        with self._unless_null(present, value, nullable=nullable):
            self.line(f"{value} = {self.part(kind.cls)}")

    def _number(self, code: str) -> str:
        """Write the reading of one number; returns the name that holds it."""
        number = self.name("n")
        layout, size = self.layout(code)
        self.line(f"{number}, = {layout}.unpack_from(buf, pos)")
        self.line(f"pos += {size}")
        return number

    def _unless_null(self, length: str, value: str, *, nullable: bool) -> AbstractContextManager[None]:
        """Write that `value` is None if `length` is below 0; what follows is for any other length."""
        if nullable:
            self.line(f"if {length} < 0: {value} = None")
        return self.block("else:", when=nullable)


class ArrayDecoder:
    """Decodes an array of one fixed-width type, whose struct letter is `code`, in one call."""

    def __init__(self, code: str) -> None:
        self._element = struct.Struct(">" + code)
        # Most arrays are replica lists: a few numbers.
        self._short = [struct.Struct(">" + code * count).unpack_from for count in range(SHORT_ARRAY_MAX + 1)]

    def __call__(self, buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
        """Return `count` values from `position` on, and the position after them."""
        stop = position + count * self._element.size
        if stop > len(buffer):
            wire.raise_short(stop, buffer)
        if count <= SHORT_ARRAY_MAX:
            return list(self._short[count](buffer, position)), stop
        return [each for (each,) in self._element.iter_unpack(buffer[position:stop])], stop


_array_decoder = cache(ArrayDecoder)
