"""Which versions of Korvet may read and write a lake: the file `_korvet_format.json` in its root says so.

A lake without it is of an earlier build, and is read as it is. Each process looks at it once. The archiver writes what
the format in Redis allows, the finalized level of `korvet.format`, and raises the lake's to that.
"""

from __future__ import annotations

import msgspec
from pyarrow.fs import FileSystem

from korvet.cluster.data_format import OWN, DataFormat, outdated
from korvet.cluster.features import stored_format
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

FILE = "_korvet_format.json"

_BUFFER_BYTES = 4096
"""With a buffer the stream takes bytes, as deltalake wants them."""


def check_redis(redis: Redis, keys: Keys) -> int:
    """Return the highest format that this version may write by what Redis says.

    Raises KafkaError UNSUPPORTED_VERSION if it would misread what is in Redis; StorageUnavailableError.
    """
    stored = stored_format(redis, keys)
    if stored is not None and (problem := stored.refusal(to_write=False) or outdated(stored)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, problem)
    return min(stored.format, OWN.format) if stored else OWN.format


def check(path: str, files: FileSystem, *, to_write: bool, level: int = OWN.format) -> None:
    """Raise LakeError if this version may not read, or `to_write` the tables below `path`; OSError as `files` does.

    With `to_write` the file says afterwards at least that this version has written data of format `level`.
    """
    stored = _read(path, files)
    if stored is not None and (problem := stored.refusal(to_write=to_write)):
        raise LakeError(f"{path}: {problem}")
    if to_write and (stored is None or stored.format < level):
        with files.open_output_stream(FILE, buffer_size=_BUFFER_BYTES) as out:
            out.write(msgspec.json.encode(OWN.at(level)))


def _read(path: str, files: FileSystem) -> DataFormat | None:
    try:
        with files.open_input_stream(FILE) as content:
            return msgspec.json.decode(content.read(), type=DataFormat)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise LakeError(
            f"{path}/{FILE}: {error}: restore it, or remove it if no later version has written"
        ) from error
