"""The format of the data in Redis and in the lake: which versions of Korvet may read it, and which may write it.

A version has a number, OWN.format; a change raises it if earlier versions would misread the data after the change. The
data names the lowest numbers that may read and write it: in Redis the hash `{korvet:brokers}:format`, in the lake the
file `_korvet_format.json` in its root.

The format in Redis is also the finalized level of the feature `korvet.format` (features.py): brokers write nothing that
needs a higher one. The first broker on an empty Redis writes its own format (lua/broker/register.lua); after that only
an update of the feature raises it (lua/broker/finalize.lua). Each registration compares it with the broker's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from korvet import FORMAT, __version__

FIELDS = ("version", "format", "reader", "writer")
"""Of the hash in Redis."""

Number = Annotated[int, msgspec.Meta(ge=0)]


class DataFormat(msgspec.Struct, frozen=True):
    """Who wrote the data: a version and its number, and the lowest numbers that may read and may write the data."""

    version: str
    format: Number
    reader: Number
    writer: Number

    def refusal(self, *, to_write: bool) -> str:
        """Return why this version must leave the data alone, "" if it may use it."""
        needed, use = (self.writer, "write") if to_write else (self.reader, "read")
        if needed <= OWN.format:
            return ""
        return (
            f"the data was written by Korvet {self.version} (format {self.format}), and {__version__} "
            f"(format {OWN.format}) may not {use} it: take Korvet {self.version} or later"
        )

    def at(self, level: int) -> DataFormat:
        """Return the same for data that has nothing of a format above `level`."""
        return DataFormat(self.version, level, min(self.reader, level), min(self.writer, level))


OWN = DataFormat(__version__, FORMAT, reader=2, writer=2)
"""Format 1: batches have the ids `0-<end>`, topics have `offset.encoding`. Format 2: partitions have a packed state."""

READABLE_FORMAT_MIN = 2
"""The lowest format of data in Redis that this version reads. In a lake it reads all of them."""


def outdated(stored: DataFormat | None) -> str:
    """Return why this version cannot read the logs in Redis, "" if it can; None: a build without formats wrote them."""
    if stored is not None and stored.format >= READABLE_FORMAT_MIN:
        return ""
    writer = f"Korvet {stored.version} (format {stored.format})" if stored else "a Korvet before format 1"
    return (
        f"the logs were written by {writer}, and {__version__} (format {OWN.format}) cannot read them: take the Korvet "
        "that wrote them, remove its keys, or choose another namespace"
    )


def read(fields: Sequence[bytes | None]) -> DataFormat | None:
    """Return what the hash holds, None if it is not there; raises ValueError for anything else."""
    if not any(fields):
        return None
    texts = [(field or b"").decode(errors="replace") for field in fields]
    return msgspec.convert(dict(zip(FIELDS, texts, strict=True)), DataFormat, strict=False)
