"""AlterClientQuotas (key 49), versions 0-1: sets and removes quotas of entities, or validates that it could (KIP-546).

The changes of one entity are made as a whole or not at all. When the response is sent the worker that sends it enforces
them, and every other worker of the cluster once it is notified of them.

Errors: INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_fields
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER_CONFIGS, on_cluster
from korvet.protocol.messages import alter_client_quotas as wire
from korvet.security.quotas import parse_changes, parse_entity


def handle(
    request: wire.AlterClientQuotasRequest, _caller: Caller, services: Services
) -> wire.AlterClientQuotasResponse:
    """Alter each entity; the failure of one leaves the others unaffected."""
    # The types of an entity have no order.
    times = Counter(frozenset(_pairs(entry)) for entry in request.entries)

    def alter(entry: wire.EntryData) -> wire.EntryResult:
        if times[frozenset(_pairs(entry))] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the entity twice.")
        entity = parse_entity(_pairs(entry))
        changes = parse_changes(entity, ((op.key, None if op.remove else op.value) for op in entry.ops))
        if not request.validate_only:
            services.quotas.alter(entity, changes)
        return _result(entry, None)

    entries = {frozenset(_pairs(entry)): entry for entry in request.entries}
    return wire.AlterClientQuotasResponse(entries=each_done(entries.values(), alter, _result))


def _pairs(entry: wire.EntryData | wire.EntryResult) -> tuple[tuple[str, str | None], ...]:
    return tuple((entity.entity_type, entity.entity_name) for entity in entry.entity)


def _result(entry: wire.EntryData, error: KafkaError | None) -> wire.EntryResult:
    return wire.EntryResult(**error_fields(error), entity=entry.entity)


def _changes(
    request: wire.AlterClientQuotasRequest, response: wire.AlterClientQuotasResponse
) -> Iterator[Outcome]:
    ops = {frozenset(_pairs(entry)): entry.ops for entry in request.entries}
    for result in response.entries:
        entity = sorted(_pairs(result), key=lambda pair: (pair[0], pair[1] or ""))
        names = ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)
        values = (f"{op.key} {'removed' if op.remove else op.value}" for op in ops[frozenset(entity)])
        yield f"{names} ({', '.join(values)})", result.error_code


register(
    handle,
    lambda request, _caller, error: wire.AlterClientQuotasResponse(
        entries=[_result(entry, error) for entry in request.entries]
    ),
    rights=[on_cluster(ALTER_CONFIGS)],
    changes=_changes,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
