"""The id of a topic, which no other topic ever has, not even one of the same name (KIP-516)."""

from __future__ import annotations

import base64
import binascii

import msgspec

from korvet.protocol.wire import ZERO_UUID

_BYTES = 16


class TopicId(msgspec.Struct, frozen=True):
    """An id, as 16 bytes. `str()` is what Kafka's tools print: base64 in the alphabet of URLs, 22 letters.

    >>> str(TopicId(bytes(range(16))))
    'AAECAwQFBgcICQoLDA0ODw'
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != _BYTES or self.value == ZERO_UUID:
            raise ValueError(f"a topic's id is {_BYTES} bytes, not all of them zero: {self.value!r}")

    def __repr__(self) -> str:
        return f"TopicId.of({str(self)!r})"

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.value).rstrip(b"=").decode()

    @classmethod
    def of(cls, text: str) -> TopicId:
        """Read what Kafka's tools print; raises ValueError.

        >>> TopicId.of("AAECAwQFBgcICQoLDA0ODw") == TopicId(bytes(range(16)))
        True
        """
        try:
            found = cls(base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True))
        except (UnicodeEncodeError, binascii.Error, ValueError):
            found = None
        # Only one text is an id's own: what decodes to the same bytes is a slip of somebody's.
        if found is None or str(found) != text:
            raise ValueError(f"{text!r} is no topic's id: 22 letters, as kafka-topics prints it")
        return found


def topic_id_of(data: bytes) -> TopicId | None:
    """Return the id in an answer; None where the broker told none."""
    return None if data == ZERO_UUID else TopicId(data)
