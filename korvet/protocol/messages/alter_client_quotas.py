"""AlterClientQuotas (key 49), versions 0-1, flexible from 1. An administrator sets and removes quotas (KIP-546)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import boolean, float64, int16, string


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


class AlterClientQuotasResponse(Response, kw_only=True):
    entries: list[EntryResult]
