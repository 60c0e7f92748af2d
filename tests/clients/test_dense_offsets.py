"""With offset.encoding=dense each library counts with offsets: 0, 1, n, end - n; lag is end minus committed."""

from __future__ import annotations

from contextlib import closing

from tests.clients.client_library import Admin, Library, read, written
from tests.support.broker import Broker
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, check_exactly, topic_name


def test_offsets_of_a_dense_topic_are_numbers_of_records(
    broker: Broker, library: Library, admin: Admin
) -> None:
    topic = topic_name("dense")
    admin.create(topic, 1, {"offset.encoding": "dense"})
    sent = [Sample(0, b"k", b"%d" % number, (), TIMESTAMP_FIRST_MS + number) for number in range(320)]
    places = [(0, offset) for offset in range(320)]
    with (
        closing(library.producer(broker.bootstrap, {})) as producer,
        closing(library.consumer(broker.bootstrap, {"group.id": topic})) as consumer,
    ):
        batches = [producer.send(topic, sent[first : first + 30]) for first in range(0, 300, 30)]
        assert [place for batch in batches for place in written(batch)] == places[:300]
        assert consumer.bounds(topic, 0) == (0, 300)
        assert consumer.by_time(topic, 0, TIMESTAMP_FIRST_MS + 123) == 123
        for first in (0, 1, 123, 300 - 50):
            consumer.assign(topic, {0: first})
            check_exactly(sent[first:300], read(consumer, 300 - first), places[first:300])
        consumer.commit()
        assert written(producer.send(topic, sent[300:])) == places[300:]
        assert (consumer.committed(topic, 0), consumer.bounds(topic, 0)) == (300, (0, 320))
        assert admin.delete_records(topic, 0, 123) == 123
        assert consumer.bounds(topic, 0) == (123, 320)
