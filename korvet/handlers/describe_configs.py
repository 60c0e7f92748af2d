"""DescribeConfigs (key 32), versions 1-4: how topics and brokers are set, and where each value comes from.

A resource that is asked for twice is answered twice. Names that are no configs are left out. From version 3 on the type
is told, and the documentation where it is asked for (KIP-569).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import register
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from korvet.topics.config_admin import Resource
from korvet.topics.config_defs import ConfigEntry

REPEATS_MAX = 10
"""Answers for one resource in one response: a name takes a few bytes of a request, its configs thousands."""

Tell = Callable[[ConfigEntry], DescribeConfigsResourceResult]
"""Says how a config is; what many topics have in common is said once."""


def handle(request: DescribeConfigsRequest, _caller: Caller, api: ClusterApi) -> DescribeConfigsResponse:
    """Describe each resource; one that cannot be does not keep the others from it."""
    api.configs.refresh()
    told = cache(partial(_told, request=request))
    times: Counter[tuple[int, str]] = Counter()
    results = []
    for resource in request.resources:
        key = (resource.resource_type, resource.resource_name)
        times[key] += 1
        if times[key] > REPEATS_MAX:
            message = f"The request names {resource.resource_name} more than {REPEATS_MAX} times."
            results.append(_failed(resource, KafkaError(ErrorCode.INVALID_REQUEST, message)))
        else:
            results.append(_described(resource, told, api))
    return DescribeConfigsResponse(results=results)


def refuse(request: DescribeConfigsRequest, _caller: Caller, error: KafkaError) -> DescribeConfigsResponse:
    """Answer every resource with the error."""
    return DescribeConfigsResponse(results=[_failed(resource, error) for resource in request.resources])


def _described(resource: DescribeConfigsResource, told: Tell, api: ClusterApi) -> DescribeConfigsResult:
    try:
        entries = api.configs.describe(Resource(resource.resource_type, resource.resource_name))
    except KafkaError as error:
        return _failed(resource, error)
    # Kafka takes an empty list of names as it takes none.
    names = set(resource.configuration_keys or ())
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[told(entry) for entry in entries if not names or entry.name in names],
    )


def _told(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(DescribeConfigsRequest, ClusterApi, handle, refuse)
