"""Requests about client quotas for tests: entities as tuples of type and name, quotas by name."""

from __future__ import annotations

from typing import Any

from korvet.protocol.messages import alter_client_quotas as alter_wire
from korvet.protocol.messages import describe_client_quotas as describe_wire
from tests.support.topic_client import Client

Pairs = tuple[tuple[str, str | None], ...]
NAME, DEFAULT, ANY = 0, 1, 2


def entry(entity: Pairs, *ops: tuple[str, float | None]) -> alter_wire.EntryData:
    """Return the changes of one entity; None removes a quota."""
    return alter_wire.EntryData(
        entity=[alter_wire.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            alter_wire.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in ops
        ],
    )


def alter(
    client: Client, *entries: alter_wire.EntryData, validate_only: bool = False, version: int = 1
) -> list[Any]:
    """Return the result of each entity."""
    request = alter_wire.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    results: list[Any] = client.call(request, version).entries
    return results


def set_quotas(client: Client, entity: Pairs, **values: float | None) -> None:
    """Set quotas of an entity."""
    [result] = alter(client, entry(entity, *values.items()))
    assert (result.error_code, result.error_message) == (0, None)


def describe(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    """Return the response to a filter."""
    wanted = [
        describe_wire.ComponentData(entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    ]
    return client.call(describe_wire.DescribeClientQuotasRequest(components=wanted, strict=strict), version)


def described(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[Pairs, dict[str, float]]:
    """Return the quotas of the entities that a filter matches."""
    response = describe(client, *components, strict=strict, version=version)
    assert (response.error_code, response.error_message) == (0, None)
    return {
        tuple((each.entity_type, each.entity_name) for each in found.entity): {
            value.key: value.value for value in found.values
        }
        for found in response.entries
    }
