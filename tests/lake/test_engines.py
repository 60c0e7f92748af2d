"""Tables of the lake as engines of others read them: Polars and DuckDB, whose every field is what was produced."""

from __future__ import annotations

import pytest

from korvet.lake.compaction import compact
from korvet.lake.schema import SCHEMA
from tests.support.archives import Topics, all_kinds
from tests.support.batches import Record
from tests.support.engines import READERS, received
from tests.support.log_bench import LAYOUTS, Layout


@pytest.mark.parametrize("engine", READERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_read_what_was_produced(topics: Topics, layout: Layout, engine: str) -> None:
    topic = topics.make("orders", layout, partitions=2)
    for _ in range(2):
        all_kinds(topics, topic)
        # A time that no calendar has.
        topics.produce(topic.partitions[1], Record(b"late", None, 2**62))
        assert topics.archiver().round(topics.run).failures == []
    wanted = [
        (partition.index, offset, key, value, tuple(headers), timestamp)
        for partition in topic.partitions
        for offset, timestamp, key, value, headers in topics.produced[topic.id, partition.index]
    ]
    uri = topics.source.lake.uri(topic.of)
    read = READERS[engine]
    assert read(uri, None).column_names == SCHEMA.names
    assert received(read(uri, None)) == wanted
    assert all(item.done for item in compact(topics.source.lake, topic.of))
    assert received(read(uri, None)) == wanted
