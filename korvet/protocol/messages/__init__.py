"""Kafka's messages, one file per API. A file is all that a new API needs here: its messages register themselves."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from korvet.protocol.schema import Message

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

MESSAGES: tuple[type[Message], ...] = tuple(
    sorted(
        (cls for cls in Message.__subclasses__() if cls.__module__.startswith(f"{__name__}.")),
        key=lambda cls: (cls.api.key, not cls.is_request()),
    )
)
"""Every request and response, by API key."""
