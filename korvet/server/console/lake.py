"""How far topics are archived, as the brokers tell their clients: the lake's share of each log and Redis' own.

Knows the questions of KIP-405 and KIP-1005 for the first offset in Redis and the last one in the lake; nothing of
tables. Offsets are told as text: a browser's numbers end at 2**53.
"""

from __future__ import annotations

from typing import Any

from korvet.admin import EARLIEST, LATEST, AdminError, LogOffset, Resource, TopicPartition
from korvet.server.console.asking import Asker
from korvet.server.console.query import Query
from korvet.server.console.topics import offset_of

_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5
_ENABLED = "remote.storage.enable"
_TOPICS_MAX = 2000
_PARTITIONS_MAX = 1000


def lake(asker: Asker, _query: Query) -> dict[str, Any]:
    """Return the partitions that are archived, or are to be. Raises AdminError."""
    listed = asker.topics.list()
    looked_at = [Resource.topic(each.name) for each in listed[:_TOPICS_MAX]]
    configs = asker.configs.describe(looked_at, names=[_ENABLED])
    tiered = []
    for resource, config in configs.items():
        if not isinstance(config, AdminError) and _ENABLED in config and config[_ENABLED].value == "true":
            tiered.append(resource.name)
    counts = {each.name: each.partitions for each in listed}
    places = [TopicPartition(name, index) for name in tiered for index in range(counts[name])]
    shown = places[:_PARTITIONS_MAX]
    starts, local, archived, ends = (
        asker.offsets.at(dict.fromkeys(shown, question))
        for question in (EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED, LATEST)
    )
    rows = []
    for place in shown:
        last = archived[place]
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "start": offset_of(starts[place]),
                "local": offset_of(local[place]),
                # The question tells the last one; where the next begins compares with the end.
                "archived": str(last.offset + 1)
                if isinstance(last, LogOffset) and last.offset >= 0
                else None,
                "end": offset_of(ends[place]),
            }
        )
    return {"partitions": rows, "left_out": len(places) - len(shown) + max(len(listed) - _TOPICS_MAX, 0)}
