"""Requests about client quotas (KIP-546), of users, client ids and addresses. Reached as `AdminClient.quotas`.

An entity is a tuple of pairs of type and name: `(("user", "alice"), ("client-id", None))` is alice's default client id.
The types are user, client-id and ip; a name of None is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from korvet.admin.errors import AdminError, error_in, raise_error_in
from korvet.admin.routing import ClusterClient
from korvet.admin.types import QuotaFilter
from korvet.protocol.messages import alter_client_quotas, describe_client_quotas

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]


class Quotas:
    """The requests about quotas."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def describe(
        self, filters: Iterable[QuotaFilter] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of each entity that all filters match, by name; without filters all. Raises AdminError.

        A strict filter matches no entity that has other types too.

            >>> admin.quotas.alter({(("user", "alice"),): {"producer_byte_rate": 1048576}})
            {(('user', 'alice'),): None}
            >>> admin.quotas.describe([QuotaFilter("user", "alice")])
            {(('user', 'alice'),): {'producer_byte_rate': 1048576.0}}
        """
        components = [
            describe_client_quotas.ComponentData(
                entity_type=each.type, match_type=each.match_type, match=each.name
            )
            for each in filters
        ]
        request = describe_client_quotas.DescribeClientQuotasRequest(components=components, strict=strict)
        response = self._client.call_any(request, describe_client_quotas.DescribeClientQuotasResponse)
        raise_error_in(response.error_code, response.error_message)
        return {
            _entity(each.entity): {value.key: value.value for value in each.values}
            for each in response.entries or ()
        }

    def alter(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> dict[QuotaEntity, AdminError | None]:
        """Set quotas, or remove those whose value is None; all of an entity or none. Returns None or an error for each.

        Raises AdminError if the request as a whole fails.

            >>> admin.quotas.alter({(("user", "alice"),): {"producer_byte_rate": None}})
            {(('user', 'alice'),): None}
        """
        entries = [
            alter_client_quotas.EntryData(
                entity=[
                    alter_client_quotas.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                ops=[
                    alter_client_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in changes.items()
        ]
        request = alter_client_quotas.AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        response = self._client.retry(
            lambda deadline: self._client.attempt_at_controller(deadline).send(
                request, alter_client_quotas.AlterClientQuotasResponse
            )
        )
        return {
            _entity(each.entity): error_in(each.error_code, each.error_message) for each in response.entries
        }


def _entity(
    pairs: Iterable[describe_client_quotas.EntityData | alter_client_quotas.EntityData],
) -> QuotaEntity:
    return tuple((each.entity_type, each.entity_name) for each in pairs)
