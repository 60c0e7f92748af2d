# What korvet/c offers. Each function returns None for what it leaves to Python.

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

_T = TypeVar("_T")

class Entries(Sequence[Any]):
    @overload
    def __getitem__(self, index: int) -> Any: ...  # noqa: ANN401 - record_format.Entry
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __len__(self) -> int: ...

class Column(Sequence[bytes]):
    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __len__(self) -> int: ...

class Reader:
    def __init__(
        self, error_of: Callable[[str], object], more: object, protocol_error: type[Exception], /
    ) -> None: ...
    def feed(self, data: bytes | bytearray, offset: int = 0, size: int = -1, /) -> None: ...
    def gets(self) -> Any: ...  # noqa: ANN401 - a Reply, or `more`
    def receive(self, socket: int, size_max: int, /) -> int: ...

def encode_records(
    runs: Sequence[tuple[int, int]],
    times: Sequence[int],
    contents: Sequence[Sequence[bytes] | None],
    following: Sequence[bytes],
    bytes_max: int,
    least: int,
    /,
) -> tuple[bytes, int, int] | None: ...
def parse_runs(ids: Sequence[bytes], bits: int, end: int, /) -> list[range] | None: ...
def parse_timestamps(column: Sequence[bytes], /) -> list[int] | None: ...
def read_batches(
    entries: Sequence[Any],
    end: int,
    kind: Callable[..., _T],
    decompress: Callable[[bytes, bytes, int], bytes | None],
    /,
) -> list[_T] | None: ...
def split_entries(entries: Sequence[Any], /) -> tuple[Column, list[bytes], list[Column]] | None: ...
