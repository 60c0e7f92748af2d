"""Error replies of Redis in one word, out of a bounded number of words."""

from __future__ import annotations

import pytest

from korvet.errors import StorageUnavailableError
from korvet.redis.replies import error_of, name_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("UNKNOWN_MEMBER_ID group g has no member m", "UNKNOWN_MEMBER_ID"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE"),
        ("ERR user_script:14: attempt to perform arithmetic", "ERR"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("READONLY You can't write against a read only replica.", "READONLY"),
        ("LOADING Redis is loading the dataset in memory", "UNAVAILABLE"),
        ("NOPERM this user has no permissions to run the 'get' command", "UNAVAILABLE"),
        ("user_script:1: any text of a script", "OTHER"),
        ("A" * 1000, "OTHER"),
        ("", "OTHER"),
    ],
)
def test_an_error_has_a_name(text: str, name: str) -> None:
    assert name_of(error_of(text)) == name


def test_a_redis_that_is_away_has_one_too() -> None:
    assert name_of(StorageUnavailableError("it closed the connection")) == "UNAVAILABLE"
