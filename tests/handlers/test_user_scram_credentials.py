"""SCRAM credentials (KIP-554): the users of one request, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from tests.handlers import apis
from tests.handlers.rows.security import SALTED, upsertion
from tests.handlers.scene import Scene


def users(scene: Scene) -> dict[str, dict[int, int]]:
    results = scene.do(apis.DescribeUserScramCredentials, users=None).results
    return {
        result.user: {info.mechanism: info.iterations for info in result.credential_infos}
        for result in results
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"upsertions": [{"name": "bob", **SALTED}, {"name": "bob", **SALTED, "mechanism": 2}]},
        {"deletions": [{"name": "bob", "mechanism": 1}, {"name": "bob", "mechanism": 2}]},
    ],
)
def test_a_user_that_is_named_twice_is_refused_and_the_others_are_done(scene: Scene, changes: Any) -> None:
    """As by Kafka's controller, whichever mechanisms the changes are of."""
    scene.do(apis.AlterUserScramCredentials, **upsertion())
    given = {"deletions": [], "upsertions": []} | changes
    given["upsertions"] = [*given["upsertions"], {"name": "alice", **SALTED}]
    results = scene.ask(apis.AlterUserScramCredentials, **given).results
    assert {result.user: (result.error_code, result.error_message) for result in results} == {
        "bob": (
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        "alice": (0, None),
    }
    assert users(scene) == {"alice": {1: 4096}, "bob": {1: 4096}}


@pytest.mark.parametrize("times", [1, 2])
def test_a_message_about_the_longest_name_is_no_longer_than_a_string_may_be(scene: Scene, times: int) -> None:
    named = [{"name": "x" * 32_767}] * times
    [result] = scene.ask(apis.DescribeUserScramCredentials, users=named).results
    assert (result.user, result.error_message[-6:]) == ("x" * 32_767, "xxx...")
