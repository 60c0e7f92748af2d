"""Every API by its table: every version, every error that the head of its handler names, and every right.

Requests are served in the test's process, by the handlers of a worker on a real Redis.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS, Handler
from korvet.protocol.types import AclOperation
from tests.handlers.rows import ROWS
from tests.handlers.scene import ALICE, CLUSTER, FAILED, NAMES, ROOT, TRANSACTIONAL_ID, Scene
from tests.handlers.table import Row, codes, differences
from tests.support.messages import message

ONLY_REFUSED = {38, 39, 40, 41}
"""APIs about delegation tokens, of which there are none."""
TOUCHING = {11, 12, 17, 36, 42, 51}
"""APIs whose refusals leave something: an id that a member was given, a later end of a session, a number of changes."""
ANY_FAILED = set(FAILED.values())


def versions_of(key: int, row: Row) -> range:
    first, last = row.versions or HANDLERS[key].request.api.versions
    return range(first, last + 1)


def every_row(*, fails: bool) -> Iterator[Any]:
    for key, rows in ROWS.items():
        for number, row in enumerate(rows):
            if bool(row.error) == fails:
                name = f"{HANDLERS[key].request.__name__}-{number}-{row.error.name}"
                if fails:
                    yield pytest.param(key, row, id=name)
                else:
                    for version in versions_of(key, row):
                        yield pytest.param(key, row, version, id=f"{name}-{version}")


def every_right() -> list[Any]:
    return [
        pytest.param(key, row, id=f"{HANDLERS[key].request.__name__}-{number}")
        for key, rows in ROWS.items()
        for number, row in enumerate(rows)
        if row.rights
    ]


def scene_of(redis_url: str, row: Row) -> Scene:
    scene = Scene(redis_url, **row.settings)
    scene.orders()
    row.before(scene)
    return scene


def served(scene: Scene, key: int, row: Row, version: int, session: Any = None) -> Any:
    if session is None:
        session = row.session(scene) if row.session else ROOT
    return scene.call(message(HANDLERS[key].request, row.request, version, scene), version, session)


@pytest.mark.parametrize(("key", "row", "version"), list(every_row(fails=False)))
def test_a_request_is_served(redis_url: str, key: int, row: Row, version: int) -> None:
    with closing(scene_of(redis_url, row)) as scene:
        answer = served(scene, key, row, version)
        assert codes(answer) == {}
        assert list(differences(row.answer, answer, version, scene)) == []


@pytest.mark.parametrize(("key", "row"), list(every_row(fails=True)))
def test_an_error_stands_in_its_place_in_every_version_and_nothing_is_changed(
    redis_url: str, raw_redis: Any, key: int, row: Row
) -> None:
    with closing(scene_of(redis_url, row)) as scene:
        before = stored(raw_redis)
        for version in versions_of(key, row):
            answer = served(scene, key, row, version)
            assert codes(answer) == {row.at: {row.error, *row.also}}, version
            assert key in TOUCHING or stored(raw_redis) == before, version
            assert list(differences(row.answer, answer, version, scene)) == [], version


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_every_version_and_every_error_of_the_head_has_a_row_and_no_row_has_another(key: int) -> None:
    handler = HANDLERS[key]
    first, last = handler.request.api.versions
    rows = [row for row in ROWS[key] if key in ONLY_REFUSED or not row.error]
    assert {version for row in rows for version in versions_of(key, row)} == set(range(first, last + 1))
    assert {code for row in ROWS[key] if row.error for code in (row.error, *row.also)} == errors_of(handler)


def errors_of(handler: Handler) -> set[ErrorCode]:
    head = sys.modules[handler.handle.__module__].__doc__ or ""
    listed = re.search(r"^Errors: ([A-Z_,\s]+)\.$", head, re.MULTILINE)
    return {ErrorCode[name] for name in re.split(r",\s", listed[1])} if listed else set()


def stored(raw_redis: Any) -> dict[bytes, bytes]:
    """Return all that is in Redis, but what a broker writes about itself."""
    return {
        key: raw_redis.dump(key)
        for key in raw_redis.scan_iter()
        if not key.endswith((b":epoch", b":brokers"))
    }


def refused(answer: Any) -> set[ErrorCode]:
    return set[ErrorCode]().union(*codes(answer).values())


@pytest.mark.parametrize(("key", "row"), every_right())
def test_without_the_right_nothing_is_done_and_with_it_alone_the_request_is_served(
    redis_url: str, raw_redis: Any, key: int, row: Row
) -> None:
    version = versions_of(key, row)[-1]
    with closing(scene_of(redis_url, row)) as scene:
        before = stored(raw_redis)
        first = (FAILED[row.rights[0][1]],) if row.refused is None else row.refused
        assert refused(served(scene, key, row, version, ALICE)) == set(first)
        assert stored(raw_redis) == before
        for number, right in enumerate(row.rights, start=1):
            scene.allow(*right)
            left = [FAILED[item[1]] for item in row.rights[number:]]
            before = stored(raw_redis)
            result = refused(served(scene, key, row, version, ALICE))
            # What all of the request needs is asked for before what its items need.
            assert result & ANY_FAILED in (set(left), set(left[:1]))
            if left:
                assert result <= set(left)
                assert stored(raw_redis) == before
            elif not row.error:
                assert result == set()


@pytest.mark.parametrize(("key", "row"), every_right())
def test_a_right_on_something_else_is_none(redis_url: str, key: int, row: Row) -> None:
    version = versions_of(key, row)[-1]
    with closing(scene_of(redis_url, row)) as scene:
        without = refused(served(scene, key, row, version, ALICE))
        for _, resource, *_ in row.rights:
            if resource is not CLUSTER and FAILED[resource] in without:
                scene.allow(AclOperation.ALL, resource, "other")
        assert refused(served(scene, key, row, version, ALICE)) == without


def test_every_right_that_the_rules_ask_for_is_that_of_a_row() -> None:
    asked = {
        (key, operation, resource)
        for key, handler in HANDLERS.items()
        for rule in handler.rights
        for operation, resource in rule.rights
    }
    in_rows = defaultdict[int, set[Any]](set)
    for key, rows in ROWS.items():
        in_rows[key] |= {right[:2] for row in rows for right in row.rights}
    assert {(key, *right) for key, rights in in_rows.items() for right in rights} == asked


def test_the_names_of_the_table_are_those_of_its_rows() -> None:
    assert NAMES[TRANSACTIONAL_ID] == "tx"
    assert HANDLERS.keys() == ROWS.keys()
