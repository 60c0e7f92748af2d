"""`korvet transactions`: transactions listed, described, and those that hang found and aborted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Producer

from korvet.admin.client import AdminClient
from tests.cli.commands import at_broker, done, done_as_json, failed
from tests.support import reading, redis_servers
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

transactions = partial(at_broker, "transactions")


@pytest.fixture
def topic(broker: InProcessBroker) -> Iterator[str]:
    """Give a topic with an open transaction in partition 0, whose transactional id is the topic's name."""
    name = topic_name("transactional")
    reading.create_topic(broker.bootstrap, name, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    yield name
    producer.purge()
    with AdminClient(broker.bootstrap) as admin:
        admin.topics.delete([name])


def test_transactions_are_listed_and_described(broker: InProcessBroker, topic: str) -> None:
    [listed] = [
        item
        for item in done_as_json("transactions", "list", "-b", broker.bootstrap, "--state", "Ongoing")
        if item["transactional_id"] == topic
    ]
    assert listed["state"] == "Ongoing"
    assert topic in done(transactions(broker, "list", "--producer-id", str(listed["producer_id"])))
    assert topic not in done(transactions(broker, "list", "--older-than", "3600000"))
    assert topic in done(transactions(broker, "list", "--id-pattern", f"{topic[:-1]}."))
    assert topic not in done(transactions(broker, "list", "--id-pattern", topic[:-1]))
    assert "INVALID_REGULAR_EXPRESSION" in failed(transactions(broker, "list", "--id-pattern", "("))
    [described] = done_as_json("transactions", "describe", "-b", broker.bootstrap, topic)
    assert described["producer_id"] == listed["producer_id"]
    assert described["partitions"] == [{"topic": topic, "partition": 0}] or described["partitions"] == [
        [topic, 0]
    ]
    assert f"{topic}:0" in done(transactions(broker, "describe", topic))
    assert "other" in failed(transactions(broker, "describe", "other"))


def test_a_transaction_that_hangs_is_found_and_aborted(broker: InProcessBroker, topic: str) -> None:
    hanging = ("find-hanging", "--topic", topic, "--older-than", "0")
    assert done(transactions(broker, *hanging)) == "no hanging transactions\n"
    with redis_servers.connected(broker.redis_url) as stored:
        # No coordinator knows of it any more.
        assert stored.delete(f"korvet:transaction:{topic}:state") == 1
    [result] = done_as_json("transactions", *hanging, "-b", broker.bootstrap)
    assert (result["topic"], result["partition"]) == (topic, 0)
    [writing] = done_as_json("transactions", "producers", "-b", broker.bootstrap, f"{topic}:0")
    assert writing == result
    of = ("abort", f"{topic}:0", "--producer-id", str(result["producer_id"]), "--yes")
    assert done(transactions(broker, *of)).startswith("aborted the transaction of producer ")
    assert done(transactions(broker, *hanging)) == "no hanging transactions\n"
    assert "has no transaction open" in failed(transactions(broker, *of))
