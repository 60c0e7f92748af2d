"""The requests of all APIs by their names: `apis.Produce` is ProduceRequest."""

from __future__ import annotations

from korvet.protocol.messages import all_messages
from korvet.protocol.schema import Message

_REQUESTS = {kind.__name__.removesuffix("Request"): kind for kind in all_messages() if kind.is_request()}


def __getattr__(name: str) -> type[Message]:
    try:
        return _REQUESTS[name]
    except KeyError:
        raise AttributeError(name) from None
