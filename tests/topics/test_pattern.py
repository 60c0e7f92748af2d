"""Regular expressions for transactional ids: RE2's syntax, all of the id, and bounds on what they cost."""

from __future__ import annotations

import gc
from typing import Any

import gevent
import pytest
import re2

from korvet.errors import ErrorCode, KafkaError
from korvet.topics.pattern import LONG_ID_MIN, PATTERN_LENGTH_MAX, compile_pattern


def refused(pattern: str) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        compile_pattern(pattern)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return error.value


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", "orders", "orders-1"),
        ("orders-.*", "orders-1", "my-orders-1"),
        (r"orders-\d+", "orders-12", "orders-1x"),
        ("(?i)ORDERS|bills", "orders", "orders|bills"),
        (r"\pL+", "bücher", "\N{SNOWMAN}"),
        ("a.c", "a\N{SNOWMAN}c", "a\nc"),
        (r"^\Qa.b\E$", "a.b", "axb"),
        ("x{1000}", "x" * 1000, "x" * 32_767),
    ],
)
def test_a_pattern_matches_all_of_an_id(pattern: str, matching: str, other: str) -> None:
    matches = compile_pattern(pattern)
    assert matches(matching)
    assert not matches(other)


@pytest.mark.parametrize("pattern", ["(", "*", "[b-a]", r"(a)\1", "(?=a)", "a{1001}", "\\"])
def test_what_is_not_of_its_syntax_is_refused(pattern: str) -> None:
    assert "is no regular expression" in refused(pattern).message


def test_what_would_cost_much_is_refused() -> None:
    compile_pattern("a" * PATTERN_LENGTH_MAX)
    assert "at most 1000 characters" in refused("a" * (PATTERN_LENGTH_MAX + 1)).message
    for pattern in ("(a{30}){30}" * 90, r"\pL" * 300, r"(\pL{9}){9}"):
        assert "too large" in refused(pattern).message


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "(.*)*.*.*.*b", "(a|b)*a(a|b){900}"])
def test_what_takes_other_libraries_for_ever_is_matched(pattern: str) -> None:
    assert not compile_pattern(pattern)("a" * 500 + "c")


def test_others_run_while_a_long_id_is_matched() -> None:
    other = gevent.spawn(int)
    assert compile_pattern("(a|b)*a(a|b){100}.*")("ab" * (LONG_ID_MIN // 2))
    assert other.ready()


def test_no_pattern_stays_in_memory() -> None:
    def kept() -> list[Any]:
        gc.collect()
        return [item for item in gc.get_objects() if isinstance(item, re2._Regexp)]

    before = len(kept())
    for number in range(10):
        compile_pattern(f"orders-{number}")
    assert re2._Regexp._make.cache_info().currsize == 0
    assert len(kept()) == before
