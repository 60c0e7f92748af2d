"""Lines of a codec under construction: what the writers of encoders and decoders share.

`build` holds the only `exec` in the tree; what it runs is made of the declarations in this package, never of input.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from korvet.protocol import wire
from korvet.protocol.schema import Field, Part, fields
from korvet.protocol.wire import Fixed


class FunctionWriter:
    """Lines of a function under construction, and the constants they name."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._depth = 0
        self._lines: list[str] = []
        self._names = 0
        self.constants: dict[str, Any] = {
            "varint": wire.encode_varint,
            "small": wire.SMALL_VARINTS,
            "read_varint": wire.decode_varint,
            "read_length": wire.decode_length,
            "read_string_length": wire.decode_string_length,
            "skip_tagged": wire.skip_tagged_fields,
            "short": wire.raise_short,
            "bad_length": wire.raise_length,
            "read_tag_count": wire.decode_tag_count,
            "bad_tag": wire.raise_tag_size,
        }

    def line(self, text: str) -> None:
        """Add one line at the present depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str, *, when: bool = True) -> Iterator[None]:
        """Write the line that opens a block, and indent what follows; without `when` there is no such block."""
        if when:
            self.line(head)
        self._depth += when
        yield
        self._depth -= when

    def name(self, prefix: str) -> str:
        """Return a local name not used yet."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: object) -> str:
        """Bind `value` to a global of the built function; equal values of one prefix share a name."""
        for name, known in self.constants.items():
            if name.startswith(prefix) and known is value:
                return name
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def layout(self, codes: str) -> tuple[str, int]:
        """Return the name of the struct for `codes`, without the method, and its size in bytes."""
        packed = _layout(codes)
        return self.constant("S", packed), packed.size

    def text(self) -> str:
        """Return the function as Python text."""
        return "\n".join(self._lines)

    def build(self, filename: str, function: str) -> Any:  # noqa: ANN401 - its caller knows its type
        """Run the source and return the function it defines."""
        exec(compile(self.text(), filename, "exec"), self.constants)  # noqa: S102 - see the module's head
        return self.constants[function]

    def runs(self, neighbours: list[Field]) -> list[list[Field]]:
        """Group neighbours of fixed width; every other field stands alone."""
        groups: list[list[Field]] = []
        for row in neighbours:
            if isinstance(row.kind, Fixed) and groups and isinstance(groups[-1][-1].kind, Fixed):
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def split(self, cls: type[Part]) -> tuple[list[Field], list[Field], list[Field]]:
        """Return the fields of `cls` in this version, untagged and tagged (by tag), and the absent ones.

        Raises TypeError for a field without a default that this version lacks: a mistake in a declaration.
        """
        plain, tagged, absent = [], [], []
        for row in fields(cls):
            if not row.present(self.version):
                if row.required:
                    msg = f"{cls.__name__}.{row.name} has no default but is absent in v{self.version}"
                    raise TypeError(msg)
                absent.append(row)
            elif row.validity.tag is None:
                plain.append(row)
            else:
                tagged.append(row)
        tagged.sort(key=lambda row: row.validity.tag or 0)
        return plain, tagged, absent


@cache
def _layout(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)


def codes_of(run: list[Field]) -> str:
    """Return the struct letters of neighbours of fixed width."""
    return "".join(row.kind.code for row in run if isinstance(row.kind, Fixed))
