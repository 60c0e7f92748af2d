"""The content of a Redis as commands that every supported server can run: a JSON array of words on each line.

A DUMP can be loaded by its own version of the server and later ones alone. A character of a word is a byte (Latin-1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Command = list[bytes]


def write(client: Any, path: Path) -> None:
    """Write all keys except expiring ones: these are leases of running processes."""
    keys = sorted(key for key in client.scan_iter() if client.pttl(key) < 0)
    with path.open("w", encoding="ascii") as file:
        for key in keys:
            for command in _OF_TYPE[client.type(key)](client, key):
                print(json.dumps([word.decode("latin-1") for word in command]), file=file)


def load(client: Any, path: Path) -> None:
    """Run the commands of a file on a Redis that holds nothing."""
    for line in path.read_text(encoding="ascii").splitlines():
        client.execute_command(*(word.encode("latin-1") for word in json.loads(line)))


def _reply(client: Any, *words: bytes | str) -> Any:
    """Return a reply of Redis as it came: redis-py's dictionaries drop a field that repeats."""
    return client.eval("return redis.call(unpack(ARGV))", 0, *words)


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _sorted(command: bytes, key: bytes, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[Command]:
    yield [command, key, *(word for pair in sorted(pairs) for word in pair)]


def _string(client: Any, key: bytes) -> Iterator[Command]:
    yield [b"SET", key, client.get(key)]


def _hash(client: Any, key: bytes) -> Iterator[Command]:
    return _sorted(b"HSET", key, _pairs(_reply(client, "HGETALL", key)))


def _sorted_set(client: Any, key: bytes) -> Iterator[Command]:
    rows = _pairs(_reply(client, "ZRANGE", key, "0", "-1", "WITHSCORES"))
    return _sorted(b"ZADD", key, ((score, member) for member, score in rows))


def _stream(client: Any, key: bytes) -> Iterator[Command]:
    info = dict(_pairs(_reply(client, "XINFO", "STREAM", key, "FULL", "COUNT", "0")))
    entries = _reply(client, "XRANGE", key, "-", "+")
    last = info[b"last-generated-id"]
    if not entries:
        yield [b"XADD", key, last, b"", b""]
        yield [b"XTRIM", key, b"MAXLEN", b"0"]
    for entry_id, fields in entries:
        yield [b"XADD", key, entry_id, *fields]
    counts = (b"%d" % info[b"entries-added"], b"MAXDELETEDID", info[b"max-deleted-entry-id"])
    yield [b"XSETID", key, last, b"ENTRIESADDED", *counts]
    for group in (dict(_pairs(group)) for group in info[b"groups"]):
        name, entries_read = group[b"name"], group[b"entries-read"]
        read = () if entries_read is None else (b"ENTRIESREAD", b"%d" % entries_read)
        yield [b"XGROUP", b"CREATE", key, name, group[b"last-delivered-id"], *read]
        for consumer in (dict(_pairs(consumer)) for consumer in group[b"consumers"]):
            yield [b"XGROUP", b"CREATECONSUMER", key, name, consumer[b"name"]]
        for entry_id, consumer, delivered_ms, deliveries in group[b"pending"]:
            times = (b"TIME", b"%d" % delivered_ms, b"RETRYCOUNT", b"%d" % deliveries)
            yield [b"XCLAIM", key, name, consumer, b"0", entry_id, *times, b"FORCE", b"JUSTID"]


_OF_TYPE: dict[bytes, Callable[[Any, bytes], Iterator[Command]]] = {
    b"string": _string,
    b"hash": _hash,
    b"zset": _sorted_set,
    b"stream": _stream,
}
