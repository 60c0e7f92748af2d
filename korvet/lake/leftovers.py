"""Files that were written for a table and that it did not take: they are deleted where that is certain.

Knows paths and the commits of a table's log; not why a commit was refused. What stays, vacuum takes a day later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from korvet.lake.files import StorageOptions, WrittenFile, filesystem


def discard(uri: str, storage_options: StorageOptions, written: Iterable[WrittenFile]) -> None:
    """Delete files that no commit has named, nor ever will, as far as that is possible."""
    for each in written:
        with contextlib.suppress(OSError):
            filesystem(uri, storage_options).delete_file(each.path)


def discard_refused(
    uri: str, storage_options: StorageOptions, written: Iterable[WrittenFile], commits: Iterable[int]
) -> None:
    """Delete the files of a commit that was refused, unless one of `commits` names them.

    These are the numbers at which it was tried. An object store may have taken what it then said to be somebody
    else's: a write is repeated where its answer was lost.
    """
    try:
        files = filesystem(uri, storage_options)
        named = b""
        for number in commits:
            with files.open_input_stream(f"_delta_log/{number:020}.json") as log:
                named += log.readall()
    except OSError:
        return
    # The log has paths in its own spelling; the last part is the same in each.
    discard(
        uri, storage_options, [each for each in written if each.path.rsplit("/", 1)[-1].encode() not in named]
    )
