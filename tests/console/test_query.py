"""Parameters and bodies of requests, and those that are not valid."""

from __future__ import annotations

import pytest

from korvet.console.changes import CreateTopic
from korvet.console.http import Request
from korvet.console.query import BadRequestError, Query, body, whole


def test_parameters_may_be_any_text() -> None:
    query = Query("/api/group?name=a%2Fb%26%00%C3%BC+c&empty=")
    assert query.text("name") == "a/b&\0ü c"
    assert query.text("empty") == ""
    assert query.text("missing", "default") == "default"
    assert Query("/api/group").text("name", "") == ""


@pytest.mark.parametrize(
    "target", ["/?name=%ff", "/?name=a&name=b", "/?&", "/?a", f"/?{'&'.join(f'p{n}=1' for n in range(17))}"]
)
def test_an_invalid_query_is_refused(target: str) -> None:
    with pytest.raises(BadRequestError):
        Query(target)


@pytest.mark.parametrize("text", ["", "-", "-1", "11", "1e1", "0x1", " 1", "1_0", "٣", "9" * 5000])
def test_a_number_is_within_its_limits(text: str) -> None:
    with pytest.raises(BadRequestError, match="a whole number from 0 to 10"):
        whole(text, "count", 0, 10)
    assert whole("10", "count", 0, 10) == 10


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b'{"name": 1}', "application/json"),
        (b'{"name": "a", "more": 1}', "application/json"),
        (b'{"name": "a", "partitions": 0}', "application/json"),
        (b'{"name": "a"}', "text/plain"),
        (b'{"name": "\xff"}', "application/json"),
        (b"[" * 60_000, "application/json"),
    ],
)
def test_a_body_is_json_of_the_expected_type(content: bytes, kind: str) -> None:
    with pytest.raises(BadRequestError):
        body(Request("POST", "/api/topics", {"content-type": kind}, content, "127.0.0.1"), CreateTopic)
