"""Kafka's messages, one file per API. A file is all that a new API needs here: its messages register themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from korvet.protocol.schema import Message


@cache
def all_messages() -> tuple[type[Message], ...]:
    """Return every request and response, by API key. Imports all files: a client needs but a few."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    result = (cls for cls in _below(Message) if cls.__module__.startswith(f"{__name__}."))
    return tuple(sorted(result, key=lambda cls: (cls.api.key, not cls.is_request())))


def _below(cls: type[Message]) -> Iterator[type[Message]]:
    for kind in cls.__subclasses__():
        yield kind
        yield from _below(kind)
