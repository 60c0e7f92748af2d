"""What the keeper tells of consumer groups in /metrics: who is in them, and how far each is behind."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from korvet import logs
from korvet.domain.groups.group_figures import GroupFigures
from korvet.domain.groups.lag_figures import GroupLag
from korvet.domain.groups.lag_reader import LagReader
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.storage.group_list import GroupList, GroupLook
from korvet.storage.index_store import IndexStore
from korvet.storage.offset_store import OffsetStore

_log = logs.Log(__name__)


class GroupsTold(NamedTuple):
    """The lag of every group in every partition, every group, and how many there are in each state."""

    lags: list[GroupLag]
    groups: list[GroupFigures]
    states: Counter[str]


def groups_told(context: Context, check_lease: CheckLease) -> GroupsTold:
    """Return the figures of all groups; raises StorageUnavailableError.

    Where the list of groups cannot be read there are none, which keeps nobody from the figures of logs.
    """
    offsets = OffsetStore(context.redis, context.keys, mirror=False)
    reader = LagReader(offsets, IndexStore(context.redis), context.topics)
    listed = GroupList(context.redis, context.keys)
    context.topics.refresh()
    told = GroupsTold([], [], Counter())
    try:
        for names in listed.names():
            check_lease()
            for look in listed.look(names):
                _add(told, look)
            lags, errors = reader.read(names, check_lease)
            told.lags.extend(lags)
            for error in errors:
                _log.warning("no lag of a group", reason=error)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("no figures of groups", reason=error)
    return told


def _add(told: GroupsTold, look: GroupLook | KafkaError) -> None:
    if isinstance(look, KafkaError):
        _log.warning("no figures of a group", reason=look)
        return
    figures = GroupFigures(group=look.group, members=look.members, generation=look.generation)
    told.groups.append(figures)
    told.states[look.state] += 1
