"""What doctor finds in topics and their logs."""

from __future__ import annotations

import json
from typing import Any

from korvet.config.settings import Settings
from korvet.doctor import redis_server
from korvet.log.packed import LOG_FIELD
from korvet.server.finding import Finding, Level
from korvet.topics.registry import TopicSpec
from tests.support.domain import Domain
from tests.support.partition_state import write_format


def examined(redis_url: str) -> dict[str, Finding]:
    """Return the findings by what was looked at."""
    return {finding.what: finding for finding in redis_server.examine(Settings(redis_url=redis_url))}


def test_logs_whose_state_is_malformed(here: Domain, redis_url: str, raw_redis: Any) -> None:
    write_format(raw_redis)
    here.topics.create(TopicSpec(name="orders", partitions=6))
    here.topics.create(TopicSpec(name="bills", partitions=2))
    here.append("orders", b"a")
    logs = examined(redis_url)["logs"]
    assert (logs.level, logs.said[:12]) == (Level.OK, "8 partitions")
    orders, bills = (here.topics.get(name).partitions for name in ("orders", "bills"))
    raw_redis.delete(orders[0].stream, orders[1].state)
    raw_redis.hdel(orders[2].state, LOG_FIELD)
    raw_redis.hset(orders[3].state, LOG_FIELD, bytes(76))
    raw_redis.hset(orders[4].state, "topic", "another")
    raw_redis.hset(orders[5].state, "7", "no row")
    raw_redis.set(bills[0].stream, "no stream")
    raw_redis.set(bills[1].state, "no hash")
    findings = examined(redis_url)
    assert {what: findings[what].said for what in ("stream", "producers")} == {
        "stream": f"{bills[0].stream} is no stream; {orders[0].stream} is missing, with all its entries",
        "producers": f"{orders[5].state}: the field 7, a producer, is malformed",
    }
    assert findings["state"].said.endswith(f"{orders[2].state}: the field log is malformed; and 2 more")
    assert findings["state"].said.startswith(f"{bills[1].state}: WRONGTYPE")
    levels = {
        (findings[what].level, bool(findings[what].advice)) for what in ("state", "stream", "producers")
    }
    assert levels == {(Level.ERROR, True)}
    assert "logs" not in findings


def test_topics_whose_offsets_are_times(redis_url: str, raw_redis: Any) -> None:
    layouts = {"a": ["time", "12"], "b": ["time", "11"], "c": ["time", "many"], "d": ["dense", "12"]}
    row: dict[str, Any] = {"id": "id", "partitions": 1}
    write_format(raw_redis)
    for name, values in layouts.items():
        configs = dict(zip(("offset.encoding", "offset.sequence.bits"), values, strict=True))
        raw_redis.hset("korvet:topics", name, json.dumps(row | {"configs": configs}))
    raw_redis.hset("korvet:topics", "e", json.dumps(row | {"configs": {"storage.format": "batch"}}))
    raw_redis.hset("korvet:group:%7Bone%7D:offsets", mapping={f"korvet:{name}:0": "{}" for name in "acde"})
    raw_redis.zadd("korvet:groups", {"%7Bone%7D": 0, "no commits": 0})
    findings = examined(redis_url)
    assert findings["offsets"].said.endswith("records: a (September 2039)")
    assert (findings["lag"].level, "offsets of a, c are times" in findings["lag"].said) == (Level.OK, True)
