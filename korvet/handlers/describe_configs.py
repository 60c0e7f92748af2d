"""DescribeConfigs (key 32), versions 1-4: the configs of topics and brokers, and where each value comes from.

A resource that is named twice is described twice. Names that are no configs are left out. From version 3 on the
response has types, and documentation if the request asks for it (KIP-569).

Errors: INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial

from korvet.config.described import ConfigEntry
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_fields
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE_CONFIGS, on_configs
from korvet.protocol.messages import describe_configs as wire
from korvet.topics.config_admin import ConfigResource

REPEATS_MAX = 10
"""Results for one resource in one response: a name takes a few bytes of a request, its configs thousands."""


def handle(
    request: wire.DescribeConfigsRequest, _caller: Caller, services: Services
) -> wire.DescribeConfigsResponse:
    """Describe each resource; the failure of one leaves the others unaffected."""
    services.configs.refresh()
    # Many topics have most entries in common: each is encoded once.
    described = cache(partial(_described, request=request))
    times: Counter[tuple[int, str]] = Counter()

    def describe(resource: wire.DescribeConfigsResource) -> wire.DescribeConfigsResult:
        key = (resource.resource_type, resource.resource_name)
        times[key] += 1
        if times[key] > REPEATS_MAX:
            message = f"The request names {resource.resource_name} more than {REPEATS_MAX} times."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        entries = services.configs.describe(ConfigResource(*key))
        # Kafka reads an empty list of names as no list.
        names = set(resource.configuration_keys or ())
        return wire.DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[described(entry) for entry in entries if not names or entry.definition.name in names],
        )

    return wire.DescribeConfigsResponse(results=each_done(request.resources, describe, _failed))


def _described(
    entry: ConfigEntry, request: wire.DescribeConfigsRequest
) -> wire.DescribeConfigsResourceResult:
    definition = entry.definition
    return wire.DescribeConfigsResourceResult(
        name=definition.name,
        value=entry.value,
        read_only=not definition.dynamic,
        config_source=entry.source,
        is_sensitive=definition.secret,
        synonyms=[
            wire.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=definition.type,
        documentation=definition.doc if request.include_documentation else None,
    )


def _failed(resource: wire.DescribeConfigsResource, error: KafkaError) -> wire.DescribeConfigsResult:
    return wire.DescribeConfigsResult(
        **error_fields(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(
    handle,
    lambda request, _caller, error: wire.DescribeConfigsResponse(
        results=[_failed(resource, error) for resource in request.resources]
    ),
    rights=[on_configs(DESCRIBE_CONFIGS, "results")],
)
