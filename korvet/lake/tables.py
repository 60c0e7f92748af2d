"""The tables of a lake: which there are, and how one that no topic has any more is removed.

Knows how they lie, `<lake>/<topic>/<topic id>`; nothing of what is in them, or of which topics there are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from korvet.errors import LakeError
from korvet.lake.files import StorageOptions, filesystem
from korvet.lake.reader import TopicOfLake

_LOG = "_delta_log"


class Lake(NamedTuple):
    """Where the tables are, and what their object store needs."""

    path: str
    storage_options: StorageOptions = None


class Stored(NamedTuple):
    """What lies below a table, of whatever kind and age: files, and their bytes."""

    files: int
    bytes: int


def tables(lake: Lake) -> list[TopicOfLake]:
    """Return the topics that have a table, by name and id; raises LakeError."""
    try:
        files = filesystem(lake.path, lake.storage_options)
        return sorted(
            TopicOfLake(topic.base_name, each.base_name)
            for topic in _directories(files, "")
            for each in _directories(files, topic.path)
            if files.get_file_info(FileSelector(f"{each.path}/{_LOG}", allow_not_found=True))
        )
    except TableNotFoundError:
        # A directory that is made when something is archived for the first time.
        return []
    except (DeltaError, OSError, ValueError) as error:
        raise LakeError(f"{lake.path}: {error}") from error


def stored(lake: Lake, of: TopicOfLake) -> Stored:
    """Return what a table takes with all that lies below it; raises LakeError."""
    try:
        files = filesystem(lake.path, lake.storage_options)
        sizes = [each.size or 0 for each in _below(files, of) if each.type == FileType.File]
    except (DeltaError, OSError, ValueError) as error:
        raise LakeError(f"{lake.path}: {error}") from error
    return Stored(len(sizes), sum(sizes))


def remove(lake: Lake, of: TopicOfLake) -> Stored:
    """Delete a table with all that lies below it; returns what that was. Raises LakeError.

    Its log goes last: after a crash it is still a table, and the next removal takes the rest.
    """
    found = stored(lake, of)
    try:
        files = filesystem(lake.path, lake.storage_options)
        log = f"{'/'.join(of)}/{_LOG}/"
        paths = [each.path for each in _below(files, of) if each.type == FileType.File]
        for path in sorted(paths, key=lambda each: (each.startswith(log), each)):
            files.delete_file(path)
        if "://" not in lake.path:
            # deltalake knows files only; here they are in directories.
            shutil.rmtree(Path(lake.path, *of))
    except (DeltaError, OSError, ValueError) as error:
        raise LakeError(f"{lake.path}: {error}") from error
    return found


def _below(files: FileSystem, of: TopicOfLake) -> list[FileInfo]:
    selector = FileSelector("/".join(of), recursive=True, allow_not_found=True)
    found: list[FileInfo] = files.get_file_info(selector)
    return found


def _directories(files: FileSystem, path: str) -> Iterator[FileInfo]:
    selector = FileSelector(path, allow_not_found=True)
    return (each for each in files.get_file_info(selector) if each.type == FileType.Directory)
