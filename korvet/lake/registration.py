"""The names that tables of the lake have in a catalog of others, and what has to change for them to be there.

A topic's name leads to the table of the topic as it is now. Tables of topics that were deleted, or re-created since,
keep a name of their own, which ends with the beginning of the topic's id, until they expire; and the name of a topic
that is gone stays as well, until a new topic needs it. Catalogs take letters, digits and _ only, and no capitals. If
two topics would have the same name the one that has it keeps it.

The plan starts from the present entries: after a killed pass, or two at once, the next pass puts everything right.
 Entries of others are never touched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from korvet.errors import LakeError
from korvet.lake.source import LakeStores
from korvet.lake.table import LakeTopic

NAME_CHARS_MAX = 200
"""Without an id; a Hive metastore takes 256."""

_OTHERS = re.compile(r"[^a-z0-9_]")


class CatalogEntry(NamedTuple):
    """A name in a catalog, and what it stands for; without `of` the entry is somebody else's."""

    name: str
    of: LakeTopic | None
    location: str = ""


class CatalogPlan(NamedTuple):
    """Entries to add, and those to change and to drop; `taken` are names that others have."""

    add: list[CatalogEntry]
    change: list[CatalogEntry]
    drop: list[CatalogEntry]
    taken: list[CatalogEntry]


def short_id(topic_id: str) -> str:
    """Return the beginning of a topic's id in characters that any name may have."""
    return base64.urlsafe_b64decode(f"{topic_id}==").hex()[:8]


def plain_name(topic: str) -> str:
    """Return a topic's name as catalogs take it."""
    return _OTHERS.sub("_", topic.lower())[:NAME_CHARS_MAX]


def plan(stores: LakeStores, location: str, entries: Mapping[str, CatalogEntry]) -> CatalogPlan:
    """Return what has to change in a catalog that has `entries`, by name, for the tables below `location`.

    Raises KafkaError and StorageUnavailableError; LakeError, also if there are tables and no topic at all, or names and
    no table at all: then it is more likely that this is not the Redis or the namespace of the lake, or not the lake.
    """
    all_tables = stores.lake.tables()
    live = {LakeTopic(row.name, row.id) for row in stores.topics.load().rows.values()}
    tables = stores.archives(all_tables, live)
    if tables and not live:
        raise LakeError("there is no topic at all: do Redis and namespace belong to this lake?")
    root = location.rstrip("/")
    wanted = {
        name: CatalogEntry(name, of, f"{root}/{of.topic}/{of.topic_id}")
        for name, of in _names(tables, live, entries)
    }
    # The lake may have had another location; of what was deleted in it only that says whose it was.
    mine = {
        name: entry
        for name, entry in entries.items()
        if entry.of is not None and (entry.of in tables or entry.location.startswith(f"{root}/"))
    }
    if mine and not tables:
        raise LakeError(
            f"{stores.lake.path} has no table, but names lead to tables of {root} ({', '.join(sorted(mine)[:3])}): "
            "is the lake mounted, and is it the one there? If its tables are really deleted, drop these names yourself"
        )
    missing = [entry for name, entry in wanted.items() if name not in entries]
    other = [entry for name, entry in wanted.items() if name in entries and entries[name] != entry]
    return CatalogPlan(
        add=missing,
        change=[entry for entry in other if entry.name in mine],
        drop=[entry for name, entry in mine.items() if name not in wanted],
        taken=[entry for entry in other if entry.name not in mine],
    )


def _names(
    tables: list[LakeTopic], live: set[LakeTopic], entries: Mapping[str, CatalogEntry]
) -> Iterator[tuple[str, LakeTopic]]:
    given: set[str] = set()

    def keeps(topic: LakeTopic) -> tuple[bool, bool, str]:
        """Order tables that have their name already first, then topics of that name."""
        entry = entries.get(plain_name(topic.topic))
        has = entry is not None and entry.of is not None and entry.of.topic == topic.topic
        return not has, plain_name(topic.topic) != topic.topic, topic.topic

    for of in sorted(live & set(tables), key=keeps):
        name = plain_name(of.topic)
        name = name if name not in given else f"{name}__{short_id(of.topic_id)}"
        given.add(name)
        yield name, of
    for of in tables:
        if of not in live:
            yield f"{plain_name(of.topic)}__{short_id(of.topic_id)}", of
            entry = entries.get(plain_name(of.topic))
            if entry is not None and entry.of == of and entry.name not in given:
                yield entry.name, of
