"""Keys, values and headers as JSON can hold them: text where they are UTF-8, base64 where they are not.

Knows bytes, and that no more of them is told than a page shows. What is made of the text is the browser's business.
"""

from __future__ import annotations

import base64
from typing import Any

_CHARACTER_BYTES_MAX = 4


def content(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """Return the first bytes, as `text` or `base64`, with how many `bytes` there are in all; None for null."""
    if data is None:
        return None
    shown = data[:bytes_max]
    row: dict[str, Any] = {"bytes": len(data)}
    text = _text(shown, cut=len(data) > bytes_max)
    if text is None:
        row["base64"] = base64.b64encode(shown).decode()
    else:
        row["text"] = text
    return row


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return UTF-8 as text, without half a character where it was cut."""
    for missing in range(_CHARACTER_BYTES_MAX if cut else 1):
        try:
            return data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None
