"""Names of topics: Kafka's rules, and which collide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.topics.registry import check_collisions, check_name

ALLOWED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@given(st.text(ALLOWED, min_size=1, max_size=249))
def test_kafkas_names_are_names(name: str) -> None:
    if name not in (".", ".."):
        check_name(name)


@given(
    before=st.text(ALLOWED, max_size=5),
    wrong=st.characters(exclude_characters=ALLOWED),
    after=st.text(ALLOWED, max_size=5),
)
def test_any_other_character_makes_it_no_name(before: str, wrong: str, after: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_name(before + wrong + after)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'.', '_' and '-'" in refused.value.message


@pytest.mark.parametrize(("name", "said"), [("", "empty"), (".", "'.'"), ("..", "'..'"), ("x" * 250, "250")])
def test_what_is_no_name_although_it_looks_like_one(name: str, said: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert said in refused.value.message


@pytest.mark.parametrize(("one", "other"), [("a.b", "a_b"), ("a.b_c", "a_b.c"), (".a", "_a")])
def test_names_collide_that_differ_only_in_dots_and_underscores(one: str, other: str) -> None:
    for name, there in ((one, other), (other, one)):
        with pytest.raises(KafkaError) as refused:
            check_collisions(name, ["x", there])
        assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert refused.value.message == f"Topic '{name}' collides with existing topic: {there}"


def test_a_name_collides_with_no_other_and_not_with_itself() -> None:
    check_collisions("a.b", ["a.b", "ab", "a.c", "a__b", "a-b"])
    check_collisions("ab", ["ab", "a.b"])
