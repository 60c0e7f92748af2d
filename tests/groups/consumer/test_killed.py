"""Workers that are killed at any step of what they do for a group: the next one goes on, and nothing is lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from korvet.errors import KafkaError
from korvet.groups.consumer import assignment
from tests.groups.consumer.support import NAME, Client, Consumers, settle
from tests.groups.consumer.test_migration import classic_group, settled
from tests.groups.support import KEYS
from tests.support.domain import domain
from tests.support.dying import Dying

STEPS_MAX = 40


def owners(at: Consumers) -> dict[str, str]:
    result = at.raw.hgetall(KEYS.group_assignments(NAME)).items()
    return {field.decode(): name.decode() for field, name in result if field.startswith(b"o:")}


def check(at: Consumers, *clients: Client) -> None:
    """Expect that the members have all partitions, as they see it themselves and as it is stored."""
    assert at.state() == "Stable"
    has = {f"o:{topic}:{index}": client.member_id for client in clients for topic, index in client.assigned}
    assert owners(at) == has
    assert sorted(field.rpartition(":")[2] for field in has) == ["0", "1", "2", "3"]
    fields = at.store.consumers.fields(NAME)
    assert (fields.size, fields.epoch) == (len(clients), fields.assignment_epoch)


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("what", ["join", "revoke", "leave", "upgrade"])
def test_a_worker_that_is_killed_at_any_request_leaves_a_group_that_others_go_on_with(
    at: Consumers, redis_url: str, raw_redis: Any, what: str, *, served: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "CLAIM_MS", 1)
        for step in range(STEPS_MAX):
            raw_redis.delete(*raw_redis.keys("*group:billing*"), KEYS.groups)
            old = classic_group(at, 1) if what == "upgrade" else []
            one, two = Client(at, "one", "orders"), Client(at, "two", "orders")
            if what in ("revoke", "leave"):
                one.join()
                two.join()
            if what == "leave":
                settle(one, two)
            if what == "revoke":
                one.send()
            with domain(redis_url) as made:
                one.at = Consumers(made, raw_redis)
                one.at.domain.topics.refresh()
                dying = Dying(made.redis)
                dying.at(step, served=served)
                with contextlib.suppress(KafkaError):
                    {"leave": one.leave, "revoke": one.beat}.get(what, one.join)()
                dying.lives()
            one.at = at
            if what == "leave":
                if dying.was_killed:
                    at.let_pass("one") if at.raw.zscore(KEYS.group_deadlines(NAME), "one") else None
                settle(two)
                check(at, two)
            elif what == "upgrade":
                one.join()
                settled([one], old)
                at.classic.leave(NAME, [(file.member_id, "") for file in old])
                settle(one)
                check(at, one)
            else:
                one.join()
                two.join()
                settle(one, two)
                check(at, one, two)
            if not dying.was_killed:
                return
    raise AssertionError("it takes more requests than that")
