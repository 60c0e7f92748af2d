"""DescribeConfigs (key 32), versions 1-4, flexible from 4. An administrator asks how topics and brokers are set.

Version 0 is gone since Kafka 4.0. Version 1 adds the source of a value and its synonyms (KIP-226). 3 adds the type and
the documentation (KIP-569).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import boolean, int8, int16, string


class DescribeConfigsResource(Part, kw_only=True):
    """A topic or a broker, and which of its settings; null is all of them."""

    resource_type: int8
    resource_name: string
    configuration_keys: list[string] | None


class DescribeConfigsRequest(Message, kw_only=True):
    api = Api(key=32, versions=(1, 4), flexible=4)

    resources: list[DescribeConfigsResource]
    include_synonyms: boolean = False
    include_documentation: Annotated[boolean, since(3)] = False


class DescribeConfigsSynonym(Part, kw_only=True):
    """A place where the value of a setting may come from, by the name that it has there."""

    name: string
    value: string | None
    source: int8


class DescribeConfigsResourceResult(Part, kw_only=True):
    """A setting. Its value is null if it is sensitive; its synonyms begin with the one that counts.

    The documentation is null if it was not asked for.
    """

    name: string
    value: string | None
    read_only: boolean
    config_source: int8 = -1
    is_sensitive: boolean
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[int8, since(3, ignorable=True)] = 0
    documentation: Annotated[string | None, since(3, ignorable=True)] = ""


class DescribeConfigsResult(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Response, kw_only=True):
    results: list[DescribeConfigsResult] = []
