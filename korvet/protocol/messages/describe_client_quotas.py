"""DescribeClientQuotas (key 48), versions 0-1, flexible from 1. An administrator asks what quotas are set (KIP-546)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode
from korvet.protocol.wire import boolean, float64, int8, string


class ComponentData(Part, kw_only=True):
    """Which entities of a type match: the one of a name, the default, or any."""

    entity_type: string
    match_type: int8
    match: string | None


class DescribeClientQuotasRequest(Message, kw_only=True):
    """Asks for the entities that match all components; `strict` leaves out entities that have other types too."""

    api = Api(key=48, versions=(0, 1), flexible=1)

    components: list[ComponentData]
    strict: boolean


class EntityData(Part, kw_only=True):
    """A type and a name, null for the default."""

    entity_type: string
    entity_name: string | None


class ValueData(Part, kw_only=True):
    key: string
    value: float64


class EntryData(Part, kw_only=True):
    entity: list[EntityData]
    values: list[ValueData]


class DescribeClientQuotasResponse(ResponseWithCode, kw_only=True):
    error_message: string | None
    entries: list[EntryData] | None
