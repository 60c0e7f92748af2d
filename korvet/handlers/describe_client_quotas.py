"""DescribeClientQuotas (key 48), versions 0-1: the quotas that are set on the entities of a filter (KIP-546).

Errors: INVALID_REQUEST, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE_CONFIGS, on_cluster
from korvet.protocol.messages import describe_client_quotas as wire
from korvet.security.quotas import is_matched, parse_filter


def handle(
    request: wire.DescribeClientQuotasRequest, _caller: Caller, services: Services
) -> wire.DescribeClientQuotasResponse:
    components = parse_filter(
        (entity.entity_type, entity.match_type, entity.match) for entity in request.components
    )
    services.quotas.refresh()
    return wire.DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            wire.EntryData(
                entity=[wire.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[wire.ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in services.quotas.table.entities.items()
            if is_matched(entity, components, strict=request.strict)
        ],
    )


register(
    handle,
    refuse_whole(wire.DescribeClientQuotasResponse, entries=None),
    rights=[on_cluster(DESCRIBE_CONFIGS)],
)
