"""The members of share groups (KIP-932), and what kafka-share-groups and kafka-groups say of them."""

from __future__ import annotations

import re

from tests.jvm.tools import AtBroker
from tests.support.broker import Broker
from tests.support.group_consumer import sharing
from tests.support.topic_client import Client


def test_a_share_group_is_listed_described_and_deleted(
    brokers: list[Broker], tools: AtBroker, topic: str
) -> None:
    of = ("--group", topic)
    with (
        Client(brokers[0].address) as one,
        Client(brokers[1].address) as two,
        sharing(one, topic, topic) as first,
        sharing(two, topic, topic) as second,
    ):
        assert re.search(rf"^{topic}\s+Share\s+share", tools.done("kafka-groups", "--list"), re.MULTILINE)
        assert re.search(
            rf"^{topic}\s+Stable", tools.done("kafka-share-groups", "--list", "--state"), re.MULTILINE
        )
        assert topic in tools.done("kafka-groups", "--list", "--share").split()
        state = tools.done("kafka-share-groups", "--describe", "--state", "--verbose", *of).split()
        assert state[-4:] == ["Stable", "2", "2", "2"], "epochs and members"
        members = tools.done("kafka-share-groups", "--describe", "--members", "--verbose", *of)
        for member in (first, second):
            # The first has both partitions until its next heartbeat.
            assert re.search(rf"{member} +/127.0.0.1 +wire +(2 +1|1 +2) +{topic}:[01]", members), members
        refused = tools.run("kafka-share-groups", "--delete", *of)
        assert "is not EMPTY" in refused.out + refused.err or "not empty" in refused.out + refused.err, (
            refused
        )
    assert re.search(
        rf"^{topic}\s+Empty", tools.done("kafka-share-groups", "--list", "--state", "empty"), re.MULTILINE
    )
    deleted = tools.run("kafka-share-groups", "--delete", *of)
    assert f"Deletion of requested share groups ('{topic}') was successful." in deleted.out, deleted
    assert topic not in tools.done("kafka-share-groups", "--list").split()
