"""FindCoordinator (key 10), versions 0-6, flexible from 3. Which broker keeps a group or transaction.

Version 1 adds the kind of key (KIP-98). Version 4 asks for many keys at once and answers for each (KIP-699). 5 allows
TRANSACTION_ABORTABLE (KIP-890). 6 knows share groups, whose key is "group:topic id:partition" (KIP-932).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import int8, int16, int32, string


class FindCoordinatorRequest(Message, kw_only=True):
    """Asks for coordinators; key_type is a types.CoordinatorType."""

    api = Api(key=10, versions=(0, 6), flexible=3)

    key: Annotated[string, since(0, until=3)] = ""
    key_type: Annotated[int8, since(1)] = 0
    coordinator_keys: Annotated[list[string], since(4)] = []


class Coordinator(Part, kw_only=True):
    key: string
    node_id: int32
    host: string
    port: int32
    error_code: int16 = 0
    error_message: string | None = ""


class FindCoordinatorResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    error_code: Annotated[int16, since(0, until=3)] = 0
    error_message: Annotated[string | None, since(1, until=3, ignorable=True)] = ""
    node_id: Annotated[int32, since(0, until=3)] = 0
    host: Annotated[string, since(0, until=3)] = ""
    port: Annotated[int32, since(0, until=3)] = 0
    coordinators: Annotated[list[Coordinator], since(4)] = []
