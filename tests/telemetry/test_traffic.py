"""Counts of a topic's traffic: by topic and incarnation, and gone with it."""

from __future__ import annotations

from korvet.telemetry.topic_counters import TopicTraffic, Traffic


def topic(name: str, topic_id: str = "one") -> tuple[str, str]:
    return name, topic_id


def test_partitions_of_a_topic_are_counted_together_and_what_goes_in_apart_from_what_goes_out() -> None:
    traffic = Traffic()
    traffic.received(*topic("orders"), 2, 100)
    traffic.received(*topic("orders"), 3, 50)
    traffic.sent(*topic("orders"), 7, 1000)
    traffic.sent(*topic("bills", topic_id="two"), 1, 10)
    assert traffic.take() == [
        TopicTraffic("orders", "one", 5, 150, 7, 1000),
        TopicTraffic("bills", "two", 0, 0, 1, 10),
    ]


def test_a_topic_made_anew_is_another_one() -> None:
    traffic = Traffic()
    traffic.received(*topic("orders", topic_id="first"), 2, 100)
    traffic.received(*topic("orders", topic_id="second"), 1, 30)
    traffic.keep(lambda name, topic_id: (name, topic_id) == ("orders", "second"))
    assert traffic.take() == [TopicTraffic("orders", "second", 1, 30)]


def test_what_was_taken_is_changed_only_by_what_comes_then() -> None:
    traffic = Traffic()
    changed = [traffic.changed]
    traffic.received(*topic("orders"), 2, 100)
    changed.append(traffic.changed)
    traffic.take()
    traffic.keep(lambda _name, _topic_id: True)
    changed.append(traffic.changed)
    traffic.keep(lambda _name, _topic_id: False)
    changed.append(traffic.changed)
    assert changed == [False, True, False, True]
    assert traffic.take() == []


def test_counts_go_on_from_those_before() -> None:
    traffic = Traffic()
    traffic.go_on([TopicTraffic("orders", "one", 5, 150, 7, 1000)])
    traffic.received(*topic("orders"), 1, 1)
    assert traffic.take() == [TopicTraffic("orders", "one", 6, 151, 7, 1000)]
