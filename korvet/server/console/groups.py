"""Consumer groups as the console shows them: a page of them, and one with its members and partitions.

Lag is in records: from offsets where these are dense, and else as the acting keeper has counted it last, which only its
own broker is told. Offsets are told as text: a browser's numbers end at 2**53.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.admin import AdminError, GroupDescription, settled
from korvet.admin.progress import Progress, progress_of
from korvet.server.console.asking import Asker
from korvet.server.console.figures import Figures
from korvet.server.console.paging import Page
from korvet.server.console.query import Query

_GROUPS_MAX = 50


def groups(asker: Asker, figures: Figures, query: Query) -> dict[str, Any]:
    """Return a page of groups. Raises AdminError."""
    page, total = Page.of(query, _GROUPS_MAX).cut(asker.groups.list(), lambda each: each.group_id)
    described = asker.groups.describe([each.group_id for each in page])
    there = [each for each in described.values() if isinstance(each, GroupDescription)]
    progress = progress_of(asker, there, figures.lags())
    rows = [
        _summary(each.group_id, described[each.group_id], progress.get(each.group_id, ()), each.state)
        for each in page
    ]
    return {"groups": rows, "total": total}


def group(asker: Asker, figures: Figures, query: Query) -> dict[str, Any]:
    """Return one group. Raises AdminError."""
    name = query.text("name")
    described = settled(asker.groups.describe([name]))[name]
    progress = progress_of(asker, [described], figures.lags())[name]
    return _summary(name, described, progress, described.state) | {
        "protocol_type": described.protocol_type,
        "protocol": described.protocol,
        "members": [
            {
                "id": each.member_id,
                "instance": each.instance_id,
                "client": each.client_id,
                "host": each.client_host,
                "partitions": None if each.partitions is None else [str(place) for place in each.partitions],
            }
            for each in described.members
        ],
        "offsets": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": None if each.committed is None else str(each.committed.offset),
                "metadata": each.committed.metadata if each.committed else "",
                "end": None if each.end is None else str(each.end),
                "lag": each.lag,
                "member": each.member.member_id if each.member else None,
                "client": each.member.client_id if each.member else None,
            }
            for each in progress
        ],
    }


def _summary(
    name: str, described: GroupDescription | AdminError, progress: Sequence[Progress], state: str
) -> dict[str, Any]:
    lags = [each.lag for each in progress]
    known = [lag for lag in lags if lag is not None]
    return {
        "name": name,
        "state": described.state if isinstance(described, GroupDescription) else state,
        "count": len(described.members) if isinstance(described, GroupDescription) else None,
        "partition_count": len(lags),
        "topics": sorted({each.partition.topic for each in progress}),
        "lag": sum(known) if known or not lags else None,
        "lag_unknown": len(lags) - len(known),
    }
