"""AlterClientQuotas (key 49), versions 0-1, flexible from 1. An administrator sets and removes quotas (KIP-546)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.wire import boolean, float64, int16, int32, string


class EntityData(Part, kw_only=True):
    """A type and a name, null for the default."""

    entity_type: string
    entity_name: string | None


class OpData(Part, kw_only=True):
    """A quota and its new value, which is ignored if the quota is removed."""

    key: string
    value: float64
    remove: boolean


class EntryData(Part, kw_only=True):
    entity: list[EntityData]
    ops: list[OpData]


class AlterClientQuotasRequest(Message, kw_only=True):
    api = Api(key=49, versions=(0, 1), flexible=1)

    entries: list[EntryData]
    validate_only: boolean


class EntryResult(Part, kw_only=True):
    error_code: int16
    error_message: string | None
    entity: list[EntityData]


class AlterClientQuotasResponse(Message, kw_only=True):
    throttle_time_ms: int32 = 0
    entries: list[EntryResult]
