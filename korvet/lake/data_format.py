"""Which versions of Korvet may read and write a lake: the file `_korvet_format.json` in its root says so.

A lake without it is of an earlier build, and is read as it is. Each process looks at it once; the same numbers in
Redis, which a broker looks at all the time, are raised before the first table is written in a new way.
"""

from __future__ import annotations

import msgspec
from pyarrow.fs import FileSystem

from korvet.cluster.data_format import FIELDS, OWN, DataFormat, outdated, read
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import parsed

FILE = "_korvet_format.json"

_BUFFER_BYTES = 4096
"""With a buffer the stream takes bytes, as deltalake wants them."""


def check_redis(redis: Redis, keys: Keys) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION if this version would misread what is in Redis; StorageUnavailableError."""
    reply = redis.call("HMGET", keys.data_format, *FIELDS)
    stored = parsed(keys.data_format, "a format of data", reply, read)
    if isinstance(stored, KafkaError):
        raise stored
    if stored is not None and (problem := stored.refusal(to_write=False) or outdated(stored)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, problem)


def check(path: str, files: FileSystem, *, to_write: bool) -> None:
    """Raise LakeError if this version may not read, or `to_write` the tables below `path`; OSError as `files` does.

    With `to_write` the file says afterwards at least that this version has written.
    """
    stored = _read(path, files)
    if stored is not None and (problem := stored.refusal(to_write=to_write)):
        raise LakeError(f"{path}: {problem}")
    if to_write and (stored is None or stored.format < OWN.format):
        with files.open_output_stream(FILE, buffer_size=_BUFFER_BYTES) as out:
            out.write(msgspec.json.encode(OWN))


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
