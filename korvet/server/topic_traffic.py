"""A worker's counts of each topic's traffic on their way to /metrics: a file per slot, written over in place.

Knows the file; what is counted stands in domain/traffic.py, and who reads it in topic_metrics.py. Files of
prometheus_client never forget a label, these hold only topics that there are. Whoever takes a slot goes on with what
its file says.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from korvet.domain.traffic import TopicTraffic, Traffic
from korvet.logs import Log
from korvet.server import metrics_files
from korvet.server.tally import Tally

_log = Log(__name__)

PATTERN = "traffic_*.rows"
"""The names of all files, in the directory of the metrics."""

_FRONT = struct.Struct("=II")  # length and CRC-32 of what follows
_READS_MAX = 5
_SHARE_MAX = 0.01
"""Of a worker's time: what writing takes at the most, however many topics there are."""


def name_of(slot: str) -> str:
    """Return the name of the file of a slot, such as "worker0"."""
    return PATTERN.replace("*", slot)


def slot_of(path: Path) -> str:
    """Return the slot that a file is named after."""
    return path.stem.partition("_")[2]


def read(path: Path) -> list[TopicTraffic]:
    """Return what a file holds; nothing where there is none, or its writer died in the middle of a line."""
    return read_whole(path) or []


def read_whole(path: Path) -> list[TopicTraffic] | None:
    """Return what a file holds; None where its writer came only half way, be it dead or the disk full."""
    data = b""
    for _ in range(_READS_MAX):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        if len(data) < _FRONT.size:
            continue
        size, crc = _FRONT.unpack_from(data)
        rows = data[_FRONT.size : _FRONT.size + size]
        # A writer may be at work, which takes microseconds.
        if len(rows) == size and zlib.crc32(rows) == crc:
            return _decoded(rows)
    return None if data else []


def _decoded(rows: bytes) -> list[TopicTraffic]:
    try:
        return msgspec.msgpack.decode(rows, type=list[TopicTraffic])
    except msgspec.DecodeError:
        # Of another version: an upgrade in place leaves the files where they are.
        return []


class TrafficFile:
    """The file of one worker."""

    def __init__(self, path: Path, traffic: Traffic, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over what the file says, for `traffic` to go on from there. Raises OSError."""
        self._failed = False
        self._traffic = traffic
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._not_before = 0.0
        traffic.go_on(read(path))

    def publish(self) -> bool:
        """Write what has changed; False where it is too soon for that, and a later call is to do it."""
        if not self._traffic.changed:
            return True
        begun = self._clock()
        if begun < self._not_before:
            return False
        self._write(self._traffic.take())
        taken = self._clock() - begun
        self._not_before = begun + taken / _SHARE_MAX
        return True

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._fd

    def close(self) -> None:
        """Write what is left, at once, and close the file, which stays."""
        if self._traffic.changed:
            self._write(self._traffic.take())
        os.close(self._fd)

    def _write(self, rows: Sequence[TopicTraffic]) -> None:
        data = msgspec.msgpack.encode(rows)
        try:
            # One call, and no new file each time: that would have the disk write what nobody needs after a restart.
            os.pwrite(self._fd, _FRONT.pack(len(data), zlib.crc32(data)) + data, 0)
        except OSError as error:
            # The next one brings all of it again: one line for as long as the disk is full.
            if not self._failed:
                _log.warning("counts of topics not published", reason=error)
            self._failed = True
        else:
            self._failed = False


def open_own(traffic: Traffic, tally: Tally) -> TrafficFile | None:
    """Publish `traffic` with each flush of `tally`, in the file of this process; None where it has no slot."""
    own = metrics_files.own()
    if own is None:
        return None
    directory, slot = own
    opened = TrafficFile(directory / name_of(slot), traffic)

    def publish() -> None:
        if not opened.publish():
            tally.flush_soon()

    tally.follow(publish)
    return opened
