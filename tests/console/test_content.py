"""Bytes as JSON can hold them."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from korvet.console.records import content


def test_null_is_not_nothing() -> None:
    assert content(None, 10) is None
    assert content(b"", 10) == {"bytes": 0, "text": ""}


@given(data=st.binary(max_size=50))
def test_bytes_come_back_as_they_are(data: bytes) -> None:
    told = content(data, 50)
    assert told is not None
    assert told["bytes"] == len(data)
    assert (told["text"].encode() if "text" in told else base64.b64decode(told["base64"])) == data


@given(text=st.text(min_size=1, max_size=40), limit=st.integers(4, 40))
def test_text_is_cut_between_characters(text: str, limit: int) -> None:
    told = content(text.encode(), limit)
    assert told is not None
    assert text.startswith(told["text"])
    assert limit - 3 <= len(told["text"].encode()) <= limit or told["text"] == text


def test_what_is_no_text_is_cut_where_the_limit_is() -> None:
    assert content(b"\xff" * 9, 4) == {"bytes": 9, "base64": base64.b64encode(b"\xff" * 4).decode()}
