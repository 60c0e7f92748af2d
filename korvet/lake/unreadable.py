"""Batches that do not decode: their bytes are kept beside the table, and the archive goes on after them.

The bytes lie in the directory `_unreadable/partition=N` of the table, which no vacuum enters, as segments of Kafka's
log have them: batch after batch, each with its base offset. `kafka-dump-log --files` reads them. A file's name is
`<first offset>.<offset after the last>.<largest timestamp>.log`.

A file is written before the commit that passes its batches. After a crash between the two the next round writes the
batches again, to the same file or to one that overlaps it: so ranges of offsets are counted, never files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from korvet_core import Fetched
from pyarrow.fs import FileSelector, FileSystem

from korvet.errors import LakeError
from korvet.lake.files import TableFile
from korvet.protocol.records.batch import HEADER_BYTES, BatchHeader

DIRECTORY = "_unreadable"

FILE_BYTES = 16 * 1024 * 1024
"""From this size on a file is complete: its batches are in memory until then."""

_BUFFER_BYTES = 1024 * 1024

_PATH = re.compile(rf"{DIRECTORY}/partition=([0-9]+)/([0-9]+)\.([0-9]+)\.([0-9]+)\.log")


class UnreadableRange(NamedTuple):
    """Offsets `first` to just before `end` of neighbouring batches that do not decode; `reason` is the first one's."""

    first: int
    end: int
    batches: int
    reason: str


class KeptRange(msgspec.Struct, frozen=True):
    """Offsets `first` to just before `end`, whose batches are kept as bytes."""

    first: int
    end: int


class KeptFile(NamedTuple):
    """A file of kept batches; `timestamp_ms` is the largest of theirs, and no later than the file."""

    path: str
    partition: int
    size_bytes: int
    first_offset: int
    end_offset: int
    timestamp_ms: int

    @property
    def as_table_file(self) -> TableFile:
        """The file as retention sees one: without rows."""
        micros = self.timestamp_ms * 1000
        offsets = self.first_offset, self.end_offset - 1
        return TableFile(self.path, self.partition, self.size_bytes, 0, *offsets, micros, micros, 0, 0)


class BatchKeeper:
    """Writes the unreadable batches of one partition, in the order of their offsets."""

    def __init__(self, files: FileSystem, partition: int) -> None:
        self.written: list[KeptFile] = []
        self._files = files
        self._partition = partition
        self._batches: list[Fetched] = []
        self._bytes = 0

    def add(self, batch: Fetched) -> None:
        """Keep what was found, which is one batch; raises OSError."""
        self._batches.append(batch)
        self._bytes += batch.size_bytes
        if self._bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet; raises OSError."""
        if not self._batches:
            return
        content = b"".join(chunk for batch in self._batches for chunk in batch.as_stored())
        now_ms = time.time_ns() // 1_000_000
        (first, _), (_, last) = self._batches[0].spans()[0], self._batches[-1].spans()[0]
        largest = max(timestamp for batch in self._batches for _, timestamp in batch.ends())
        # The header may be wrong too: a time that is no time would expire at once, or never.
        timestamp_ms = largest if 0 <= largest <= now_ms else now_ms
        kept = KeptFile("", self._partition, 0, first, last + 1, timestamp_ms)
        self.written.append(_write(self._files, kept, content))
        self._batches, self._bytes = [], 0


def kept_files(files: FileSystem) -> list[KeptFile]:
    """Return the files of kept batches of a table, by partition and offset; raises OSError."""
    infos = files.get_file_info(FileSelector(DIRECTORY, recursive=True, allow_not_found=True))
    kept = []
    for info in infos:
        if match := _PATH.fullmatch(info.path):
            partition, first, end, timestamp_ms = map(int, match.groups())
            kept.append(KeptFile(info.path, partition, info.size or 0, first, end, timestamp_ms))
    return sorted(kept, key=lambda file: (file.partition, file.first_offset))


def merged(ranges: Iterable[KeptRange]) -> list[KeptRange]:
    """Return the same offsets as ranges that are disjoint and rise."""
    joined: list[KeptRange] = []
    for following in sorted(ranges, key=lambda one: one.first):
        if joined and following.first <= joined[-1].end:
            joined[-1] = KeptRange(joined[-1].first, max(joined[-1].end, following.end))
        else:
            joined.append(following)
    return joined


def batch_ranges(files: FileSystem, kept: KeptFile) -> list[KeptRange]:
    """Return the offsets of each batch in a file; raises OSError, LakeError for a file that is damaged."""
    return [offsets for offsets, _ in _batches(kept, _content(files, kept))]


def cut(files: FileSystem, kept: KeptFile, end: int) -> None:
    """Keep of a file only the batches below offset `end`; raises as `batch_ranges`."""
    content = _content(files, kept)
    below = [(offsets.end, size) for offsets, size in _batches(kept, content) if offsets.end <= end]
    if below:
        last, size = below[-1]
        _write(files, kept._replace(end_offset=last), content[:size])
    files.delete_file(kept.path)


def _content(files: FileSystem, kept: KeptFile) -> bytes:
    with files.open_input_stream(kept.path) as file:
        content: bytes = file.readall()
    return content


def _batches(kept: KeptFile, content: bytes) -> Iterator[tuple[KeptRange, int]]:
    """Yield the offsets of each batch, and where in the file it ends; raises LakeError for a file that is damaged."""
    at = 0
    while at < len(content):
        if at + HEADER_BYTES > len(content):
            raise LakeError(f"{kept.path} is cut off")
        header = BatchHeader.read(content, at)
        at += header.size_bytes
        end = header.base_offset + header.last_offset_delta + 1
        if header.size_bytes < HEADER_BYTES or at > len(content) or end > kept.end_offset:
            raise LakeError(f"{kept.path} is damaged at the batch of offset {header.base_offset}")
        yield KeptRange(header.base_offset, end), at


def _write(files: FileSystem, kept: KeptFile, content: bytes) -> KeptFile:
    """Write the bytes of a file, whose path and size are not known yet."""
    name = f"{kept.first_offset:020}.{kept.end_offset:020}.{kept.timestamp_ms}.log"
    path = f"{DIRECTORY}/partition={kept.partition}/{name}"
    # Buffered: deltalake takes bytes alone, and Arrow gives it what is written at once as a Buffer.
    with files.open_output_stream(path, buffer_size=_BUFFER_BYTES) as file:
        file.write(content)
    return kept._replace(path=path, size_bytes=len(content))
