"""Topics as the console shows them: a page of them with sizes and traffic, and one with partitions and configs.

Offsets are told as text: a browser's numbers end at 2**53.
"""

from __future__ import annotations

import time
from typing import Any

from korvet.admin import (
    EARLIEST,
    LATEST,
    AdminError,
    ConfigSource,
    LogOffset,
    Resource,
    TopicPartition,
    settled,
)
from korvet.server.console.asking import Asker, Askers
from korvet.server.console.figures import Figures
from korvet.server.console.paging import Page
from korvet.server.console.query import Query

_TOPICS_MAX = 100
_SIZES_MAX = 5000
_CONFIGS = ("cleanup.policy", "retention.ms", "storage.format", "remote.storage.enable")


def topics(askers: Askers, asker: Asker, figures: Figures, query: Query) -> dict[str, Any]:
    """Return a page of topics: `size` in bytes, None where a broker does not tell it. Raises AdminError."""
    page, total = Page.of(query, _TOPICS_MAX).cut(asker.topics.list(), lambda each: each.name)
    places = {
        each.name: [TopicPartition(each.name, index) for index in range(each.partitions)] for each in page
    }
    every = [place for some in places.values() for place in some]
    sizes = askers.sizes(asker, every) if len(every) <= _SIZES_MAX else {}
    configs = asker.configs.describe([Resource.topic(each.name) for each in page], names=_CONFIGS)
    traffic = figures.traffic()
    rows = []
    for each in page:
        told = [sizes.get(place) for place in places[each.name]]
        config = configs[Resource.topic(each.name)]
        rows.append(
            {
                "name": each.name,
                "internal": each.internal,
                "partitions": each.partitions,
                "size": None if None in told else sum(size for size in told if size is not None),
                "traffic": traffic.get(each.name),
                "configs": {}
                if isinstance(config, AdminError)
                else {name: found.value for name, found in config.items()},
            }
        )
    return {"topics": rows, "total": total, "now": time.time_ns() // 1_000_000}


def topic(askers: Askers, asker: Asker, figures: Figures, query: Query) -> dict[str, Any]:
    """Return one topic. Raises AdminError."""
    name = query.text("name")
    described = settled(asker.topics.describe([name]))[name]
    places = [TopicPartition(name, each.partition) for each in described.partitions]
    starts = asker.offsets.at(dict.fromkeys(places, EARLIEST))
    ends = asker.offsets.at(dict.fromkeys(places, LATEST))
    sizes = askers.sizes(asker, places)
    resource = Resource.topic(name)
    configs = settled(asker.configs.describe([resource], documentation=True))[resource]
    return {
        "name": name,
        "id": str(described.topic_id),
        "internal": described.internal,
        "traffic": figures.traffic().get(name),
        "now": time.time_ns() // 1_000_000,
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": each.replicas,
                "start": offset_of(starts[place]),
                "end": offset_of(ends[place]),
                "size": sizes.get(place),
            }
            for each, place in zip(described.partitions, places, strict=True)
        ],
        "configs": [
            {
                "name": each.name,
                "value": each.value,
                "own": each.source is ConfigSource.TOPIC,
                "source": each.source.name.lower(),
                "documentation": each.documentation,
            }
            for each in sorted(configs.values(), key=lambda each: each.name)
        ],
    }


def offset_of(found: LogOffset | AdminError) -> str | None:
    """Return an offset as text; None where there is none or it is not told."""
    return None if isinstance(found, AdminError) or found.offset < 0 else str(found.offset)
