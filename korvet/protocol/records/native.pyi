# What native.c offers. Each function returns None for what it leaves to Python.

from collections.abc import Sequence
from typing import Any

def encode_records(
    runs: Sequence[tuple[int, int]],
    times: Sequence[int],
    contents: Sequence[Sequence[bytes] | None],
    following: Sequence[bytes],
    bytes_max: int,
    least: int,
    /,
) -> tuple[bytes, int, int] | None: ...
def parse_timestamps(column: Sequence[bytes], /) -> list[int] | None: ...
def split_entries(entries: Sequence[Any], /) -> tuple[list[bytes], list[bytes], list[list[bytes]]] | None: ...
