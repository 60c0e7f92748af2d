"""ApiVersions by bytes: the first thing every client asks, and asks again where it does not get on."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.topic_client import Client
from tests.support.wire_client import frame, header

pytestmark = pytest.mark.slow

SOFTWARE: Any = {"client_software_name": "wire", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", [5, 32767, -1])
def test_a_version_that_is_not_served_is_answered_in_version_0_with_the_own_range(
    client: Client, version: int
) -> None:
    client.send_bytes(frame(header(18, version, correlation_id=7) + b"\0\x05name\x041.0\0"))
    assert client.receive_frame() == struct.pack(">ihi", 7, 35, 1) + struct.pack(">hhh", 18, 0, 4)
    assert client.call(ApiVersionsRequest(**SOFTWARE), 4).error_code == ErrorCode.NONE


def test_the_response_header_is_plain_even_where_the_request_is_flexible(client: Client) -> None:
    client.send(ApiVersionsRequest(**SOFTWARE), 3, correlation_id=9)
    # After the correlation id comes the error code at once, then a compact array of one more than its length.
    assert client.receive_frame()[:7] == struct.pack(">ih", 9, 0) + bytes([len(HANDLERS) + 1])


def test_a_client_without_an_id_is_served(client: Client) -> None:
    client.client_id = None
    assert client.call(ApiVersionsRequest(**SOFTWARE), 4).error_code == ErrorCode.NONE
