"""What the keeper tells of consumer groups in /metrics: how far each is behind."""

from __future__ import annotations

from korvet import logs
from korvet.domain.groups.lag_figures import GroupLag
from korvet.domain.groups.lag_reader import LagReader
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.storage.group_list import GroupList
from korvet.storage.index_store import IndexStore
from korvet.storage.offset_store import OffsetStore

_log = logs.Log(__name__)


def group_lags(context: Context, check_lease: CheckLease) -> list[GroupLag]:
    """Return the lag of every group in every partition; raises StorageUnavailableError.

    Where the list of groups cannot be read there is none, which keeps nobody from the figures of logs.
    """
    offsets = OffsetStore(context.redis, context.keys, mirror=False)
    reader = LagReader(offsets, IndexStore(context.redis), context.topics)
    context.topics.refresh()
    taken: list[GroupLag] = []
    try:
        for names in GroupList(context.redis, context.keys).names():
            lags, errors = reader.read(names, check_lease)
            taken += lags
            for error in errors:
                _log.warning("no lag of a group", reason=error)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("no lag of groups", reason=error)
    return taken
