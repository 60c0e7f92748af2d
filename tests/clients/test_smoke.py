"""Each library produces, consumes in a group and commits: what breaks first if a broker and a client disagree."""

from __future__ import annotations

from contextlib import closing

from tests.clients.client_library import Library, read, written
from tests.support.broker import Broker
from tests.support.records import check_exactly, samples, topic_name


def test_a_group_goes_on_behind_what_it_has_committed(broker: Broker, library: Library) -> None:
    topic = topic_name(f"smoke-{library.name}")
    first, second = samples(0, 300, null_headers=False), samples(300, 300, null_headers=False)
    with closing(library.admin(broker.bootstrap)) as admin:
        admin.create(topic, partitions=4)
    with closing(library.producer(broker.bootstrap, {})) as producer:
        for part in (first, second):
            offsets = written(producer.send(topic, part))
            with closing(library.consumer(broker.bootstrap, {"group.id": topic})) as consumer:
                consumer.subscribe(topic)
                check_exactly(part, read(consumer, len(part)), offsets)
                consumer.commit()
