"""Requests about client quotas (KIP-546), of users, client ids and addresses. Reached as `AdminClient.quotas`.

An entity is a tuple of pairs of type and name: `(("user", "alice"), ("client-id", None))` is alice's default client id.
The types are user, client-id and ip; a name of None is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from korvet.admin.errors import error_in
from korvet.admin.routing import Requests, Route
from korvet.admin.types import Outcomes, QuotaFilter
from korvet.protocol.messages import alter_client_quotas, describe_client_quotas

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]


class Quotas(Requests):
    """The requests about quotas."""

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
                entity_type=part.type, match_type=part.match_type, match=part.name
            )
            for part in filters
        ]
        request = describe_client_quotas.DescribeClientQuotasRequest(components=components, strict=strict)
        response = self._client.call(request, describe_client_quotas.DescribeClientQuotasResponse)
        return {
            _entity(entry.entity): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }

    def alter(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> Outcomes[QuotaEntity, None]:
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
        answer = alter_client_quotas.AlterClientQuotasResponse
        return {
            _entity(entry.entity): error_in(entry.error_code, entry.error_message)
            for entry in self._client.call(request, answer, Route.CONTROLLER).entries
        }


def _entity(
    pairs: Iterable[describe_client_quotas.EntityData | alter_client_quotas.EntityData],
) -> QuotaEntity:
    return tuple((pair.entity_type, pair.entity_name) for pair in pairs)
