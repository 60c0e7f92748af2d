"""Changes spec by the console, and those that it refuses."""

from __future__ import annotations

import pytest

from tests.support.broker import Broker
from tests.support.console import Caller
from tests.support.group_consumer import joined
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow


def test_a_topic_is_created_changed_and_deleted(broker: Broker, console: Caller, name: str) -> None:
    spec = {"name": name, "partitions": 2, "configs": {"retention.ms": "60000"}}
    assert console.changed("POST", "topics", spec) == {"name": name, "partitions": 2}
    assert console.change("POST", "topics", spec).status == 409
    console.changed(
        "POST",
        "topics/configs",
        {"name": name, "configs": {"retention.ms": None, "cleanup.policy": "compact"}},
    )
    configs = {item["name"]: item for item in console.data("topic", name=name)["configs"]}
    assert configs["cleanup.policy"]["value"] == "compact"
    assert configs["retention.ms"]["own"] is False
    console.changed("POST", "topics/partitions", {"name": name, "partitions": 5})
    assert len(console.data("topic", name=name)["partitions"]) == 5
    console.changed("DELETE", "topics", {"name": name})
    assert console.get("/api/topic", name=name).status == 404
    for event in ("topic created", "configs altered", "partitions added", "topic deleted"):
        assert f"{event} by the console name={name} peer=127.0.0.1" in broker.log()


def test_offsets_are_previewed_before_they_are_reset(console: Caller, client: Client, name: str) -> None:
    client.create(name, partitions=2, storage_format="batch")
    client.append(name, b"one", b"two", b"three")
    spec = {"name": name, "to": "offset", "value": "2", "topic": name, "partitions": [0]}
    planned = console.changed("POST", "groups/offsets", spec)
    assert planned["moves"] == [{"topic": name, "partition": 0, "before": None, "after": "2", "error": None}]
    assert console.get("/api/group", name=name).status == 404
    assert console.changed("POST", "groups/offsets", spec | {"execute": True})["executed"] is True
    for to, value, after in (
        ("shift", "-1", "1"),
        ("earliest", "0", "0"),
        ("latest", "0", "3"),
        ("time", "0", "0"),
    ):
        moved = console.changed(
            "POST", "groups/offsets", {"name": name, "to": to, "value": value, "execute": True}
        )
        assert [item["after"] for item in moved["moves"]] == [after], to


def test_a_group_with_members_is_not_changed(
    broker: Broker, console: Caller, client: Client, name: str
) -> None:
    client.create(name)
    with joined(broker.bootstrap, name, name):
        reply = console.change(
            "POST", "groups/offsets", {"name": name, "to": "latest", "topic": name, "execute": True}
        )
        assert reply.status == 409
        assert "members" in reply.data["error"]
        assert console.change("DELETE", "groups", {"name": name}).status == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "topics", {"name": "no/topic"}, 400),
        ("POST", "topics", {"name": "bad-config", "configs": {"retention.ms": "soon"}}, 400),
        ("POST", "topics", {"name": "bad-config", "configs": {"no.such": "1"}}, 400),
        ("POST", "topics", {}, 400),
        ("POST", "topics/configs", {"name": "none", "configs": {"retention.ms": "1"}}, 404),
        ("POST", "topics/configs", {"name": "none", "configs": {}}, 400),
        ("POST", "topics/partitions", {"name": "none", "partitions": 3}, 404),
        ("DELETE", "topics", {"name": "none"}, 404),
        ("DELETE", "groups", {"name": "none"}, 404),
        ("POST", "groups/offsets", {"name": "none", "to": "nowhere"}, 400),
        ("POST", "groups/offsets", {"name": "none", "to": "offset", "value": "-1"}, 400),
        ("POST", "groups/offsets", {"name": "none", "to": "latest"}, 409),
        ("POST", "groups", {"name": "none"}, 404),
        ("DELETE", "none", {"name": "none"}, 404),
    ],
)
def test_invalid_changes_have_a_status_and_a_message(
    console: Caller, method: str, path: str, body: dict[str, object], status: int
) -> None:
    reply = console.change(method, path, body)
    assert reply.status == status, reply
    assert reply.data["error"]
