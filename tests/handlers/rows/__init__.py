"""The rows of every API, one file for each group of APIs."""

from __future__ import annotations

from collections.abc import Sequence

from korvet.protocol.schema import Message
from tests.handlers.rows.cluster import CLUSTER_ROWS
from tests.handlers.rows.configs import CONFIG_ROWS
from tests.handlers.rows.consumer_groups import CONSUMER_GROUP_ROWS
from tests.handlers.rows.groups import GROUP_ROWS
from tests.handlers.rows.offsets import OFFSET_ROWS
from tests.handlers.rows.records import RECORD_ROWS
from tests.handlers.rows.security import SECURITY_ROWS
from tests.handlers.rows.share import SHARE_ROWS
from tests.handlers.rows.streams import STREAMS_ROWS
from tests.handlers.rows.topics import TOPIC_ROWS
from tests.handlers.rows.transactions import TRANSACTION_ROWS
from tests.handlers.table import Row, Rows


def _by_key(*tables: Rows) -> dict[int, Sequence[Row]]:
    kinds: dict[type[Message], Sequence[Row]] = {}
    for table in tables:
        assert not kinds.keys() & table.keys()
        kinds |= table
    return {kind.api.key: rows for kind, rows in kinds.items()}


ROWS = _by_key(
    RECORD_ROWS,
    OFFSET_ROWS,
    TOPIC_ROWS,
    CONFIG_ROWS,
    GROUP_ROWS,
    CONSUMER_GROUP_ROWS,
    TRANSACTION_ROWS,
    SHARE_ROWS,
    STREAMS_ROWS,
    SECURITY_ROWS,
    CLUSTER_ROWS,
)
"""By API key."""
