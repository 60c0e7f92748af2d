"""Kafka's own share consumer (KIP-932) in Java: what it acknowledges in each way, what comes again, and to whom."""

from __future__ import annotations

import pytest

from tests.jvm.share import EXPLICIT, Counts, Start, configure, send
from tests.jvm.tools import AtBroker
from tests.support.broker import Broker
from tests.support.records import topic_name

VALUES = [f"v{number:02}" for number in range(20)]


@pytest.fixture(params=["plain", "dense"])
def topic(request: pytest.FixtureRequest, tools: AtBroker, bootstrap: str) -> str:
    """Give a topic of one partition, of either format, whose name is a group's too that begins at its start."""
    name = topic_name(f"{request.param}-share")
    tools.done("kafka-topics", "--create", "--topic", name, "--partitions", "1")
    configure(bootstrap, name, share_auto_offset_reset="earliest")
    return name


@pytest.fixture
def bootstrap(brokers: list[Broker]) -> str:
    """Give the addresses of both brokers."""
    return ",".join(broker.bootstrap for broker in brokers)


def counted(values: list[str], count: int) -> Counts:
    return dict.fromkeys(values, count)


def test_released_records_come_again_and_others_do_not(bootstrap: str, topic: str, share: Start) -> None:
    send(bootstrap, topic, VALUES)
    one = share(topic, topic, EXPLICIT)
    assert one.some() == counted(VALUES, 1)
    one.accept(*VALUES[:5], *VALUES[15:])
    one.release(*VALUES[5:10])
    one.reject(*VALUES[10:15])
    assert one.commit() == "done"
    assert one.some() == counted(VALUES[5:10], 2)
    one.accept(*VALUES[5:10])
    assert one.commit() == "done"
    send(bootstrap, topic, ["next"])
    assert one.some() == {"next": 1}


def test_a_renewed_record_stays_with_its_consumer(bootstrap: str, topic: str, share: Start) -> None:
    send(bootstrap, topic, ["long"])
    one, two = share(topic, topic, EXPLICIT), share(topic, topic, EXPLICIT)
    assert one.some() == {"long": 1}
    for _ in range(2 * int(one.do("lock")) // 300):
        one.renew("long")
        assert one.commit() == "done"
        assert one.poll() == {"long": 1}
        assert two.poll(0.3) == {}
    one.accept("long")
    assert one.commit() == "done"
    send(bootstrap, topic, ["next"])
    assert two.some() == {"next": 1}
