"""The operations that are measured, as locust's statistics and page name them.

Knows names only; what each of them measures stands in loadtest/README.md.
"""

from __future__ import annotations

from typing import NamedTuple

FORMATS = ("record", "batch")
"""Storage formats of topics, which have statistics of their own: they differ in what an append costs."""


class Operation(NamedTuple):
    """One row of the statistics, which locust sorts by name: first who does what, as "producer: deliver".

    Locust's Type is the format of the topic, "" where it does not matter.
    """

    name: str
    type: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" if self.type else self.name

    @property
    def user(self) -> str:
        """Who does it, as --mix names users."""
        return self.name.partition(":")[0]

    def to(self, topic_format: str) -> Operation:
        """Return this operation on topics of a format, "" for the broker's own."""
        return Operation(self.name, topic_format)


DELIVER = Operation("producer: deliver")
FIRST = Operation("producer: first record")
TAIL = Operation("consumer: end to end")
LIST_OFFSETS = Operation("reader: list offsets")
FETCH = Operation("reader: fetch from an offset")
GROUP_TAIL = Operation("group: end to end")
JOIN = Operation("group: join")
COMMIT = Operation("group: commit")
COMMIT_REFUSED = Operation("group: commit, too late")
LEAVE = Operation("group: leave")
METADATA = Operation("admin: metadata")
CREATE_TOPIC = Operation("admin: create topic")
DESCRIBE_CONFIGS = Operation("admin: describe configs")
DESCRIBE_GROUP = Operation("admin: describe group")
DELETE_TOPIC = Operation("admin: delete topic")

_BY_FORMAT = (DELIVER, TAIL, FETCH, GROUP_TAIL)
_OTHERS = (
    *(FIRST, LIST_OFFSETS, JOIN, COMMIT, COMMIT_REFUSED, LEAVE),
    *(METADATA, CREATE_TOPIC, DESCRIBE_CONFIGS, DESCRIBE_GROUP, DELETE_TOPIC),
)
ALL = {
    str(operation): operation
    for operation in (*(item.to(name) for item in _BY_FORMAT for name in ("", *FORMATS)), *_OTHERS)
}
"""Every operation by the name that thresholds call it."""
