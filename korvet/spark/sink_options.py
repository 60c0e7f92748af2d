"""The options of the data source `korvet` where it is written to: what they are called, and what they mean.

Knows texts only; those of reading stand in `options`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from korvet.protocol.records.compression import Codec

_BOOTSTRAP, _TOPIC = "bootstrap.servers", "topic"
_COMPRESSION, _TIMEOUT = "compression.type", "delivery.timeout.ms"
_NAMES = (_BOOTSTRAP, _TOPIC, _COMPRESSION, _TIMEOUT)
_TIMEOUT_DEFAULT = "120000"
"""That of Kafka's own producers."""

_OF_SPARK = {"path", "checkpointlocation"}


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where records go. Without a `topic` each row names its own; `timeout` are the seconds that a batch may take."""

    bootstrap_servers: str
    topic: str | None
    codec: Codec
    timeout: float


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return what options say; raises ValueError for what is wrong with them.

    Spark gives their names in any case, and its own besides.
    """
    found = {name.lower(): value for name, value in given.items()}
    unknown = sorted(found.keys() - set(_NAMES) - _OF_SPARK)
    if unknown:
        raise ValueError(f"unknown option {unknown[0]}; known for writing are {', '.join(_NAMES)}")
    if not found.get(_BOOTSTRAP):
        raise ValueError(f"the option {_BOOTSTRAP} is missing: which brokers to write to")
    codec = found.get(_COMPRESSION, Codec.none.name)
    if codec not in Codec.__members__:
        raise ValueError(f"{_COMPRESSION}: {codec!r} is none of {', '.join(Codec.__members__)}")
    timeout = found.get(_TIMEOUT, _TIMEOUT_DEFAULT)
    if not timeout.isdigit() or not int(timeout):
        raise ValueError(f"{_TIMEOUT}: {timeout!r} is no positive number")
    return SinkOptions(
        bootstrap_servers=found[_BOOTSTRAP],
        topic=found.get(_TOPIC) or None,
        codec=Codec[codec],
        timeout=int(timeout) / 1000,
    )
