"""Kafka's own share consumer (KIP-932) in Java: what it acknowledges in each way, what comes again, and to whom."""

from __future__ import annotations

import pytest

from tests.jvm.share import EXPLICIT, Counts, Start, configure, send
from tests.jvm.tools import AtBroker
from tests.support.broker import Broker
from tests.support.records import topic_name

VALUES = [f"v{number:02}" for number in range(20)]
STRICT = "share.acquire.mode=record_limit"


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
    return ",".join(each.bootstrap for each in brokers)


def counted(values: list[str], count: int) -> Counts:
    return dict.fromkeys(values, count)


def test_records_are_accepted_by_the_next_poll_or_commit(bootstrap: str, topic: str, share: Start) -> None:
    send(bootstrap, topic, VALUES)
    one = share(topic, topic)
    assert one.some() == counted(VALUES, 1)
    assert one.poll() == {}
    send(bootstrap, topic, ["next"])
    assert one.some() == {"next": 1}
    assert one.commit() == "done"
    one.close()
    send(bootstrap, topic, ["last"])
    assert share(topic, topic).some() == {"last": 1}


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


def test_another_gets_what_was_held_too_long(bootstrap: str, topic: str, share: Start) -> None:
    send(bootstrap, topic, VALUES)
    slow, quick = share(topic, topic, EXPLICIT), share(topic, topic, EXPLICIT)
    assert slow.some() == counted(VALUES, 1)
    slow.accept(VALUES[0])
    assert slow.commit() == "done"
    # Each lock may end by itself.
    first = quick.some()
    slow.accept(*VALUES[1:])
    assert slow.commit() == "InvalidRecordStateException"
    quick.accept(*first)
    came = first | quick.take(len(VALUES) - 1 - len(first))
    assert came.keys() == set(VALUES[1:])
    assert min(came.values()) >= 2  # more where this one too was slow


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


def test_a_limit_of_records_is_exact_only_if_that_is_asked_for(
    bootstrap: str, topic: str, share: Start
) -> None:
    configure(bootstrap, topic, share_record_lock_duration_ms="60000")
    send(bootstrap, topic, VALUES)
    exact = share(topic, topic, EXPLICIT, STRICT, "max.poll.records=3")
    assert exact.some() == counted(VALUES[:3], 1)
    whole = share(topic, topic, EXPLICIT, "max.poll.records=3")
    came = whole.some()
    assert list(came) == VALUES[3 : 3 + len(came)]
    exact.accept(*VALUES[:3])
    assert exact.commit() == "done"
    whole.accept(*came)
    assert whole.commit() == "done"
    left = VALUES[3 + len(came) :]
    assert whole.take(len(left)) == counted(left, 1)


def test_close_gives_back_what_is_not_acknowledged(bootstrap: str, topic: str, share: Start) -> None:
    configure(bootstrap, topic, share_record_lock_duration_ms="60000")
    send(bootstrap, topic, VALUES)
    one = share(topic, topic, EXPLICIT)
    assert one.some() == counted(VALUES, 1)
    one.accept(*VALUES[:10])
    one.close()
    assert list(share(topic, topic).some()) == VALUES[10:]
