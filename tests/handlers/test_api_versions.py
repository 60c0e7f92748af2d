"""ApiVersions by bytes: the first thing every client asks, and asks again where it does not get on."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from korvet.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from tests.support.topic_client import Client
from tests.support.wire_client import frame, header

pytestmark = pytest.mark.slow

SOFTWARE: Any = {"client_software_name": "wire", "client_software_version": "1.0"}
APACHE_KAFKA_4_2 = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    27: (1, 2),
    28: (0, 5),
    29: (1, 3),
    30: (1, 3),
    31: (1, 3),
    32: (1, 4),
    33: (0, 2),
    35: (1, 4),
    36: (0, 2),
    37: (0, 3),
    38: (1, 3),
    39: (1, 2),
    40: (1, 2),
    41: (1, 3),
    42: (0, 2),
    43: (0, 2),
    44: (0, 1),
    45: (0, 1),
    46: (0, 0),
    47: (0, 0),
    48: (0, 1),
    49: (0, 1),
    50: (0, 0),
    51: (0, 0),
    57: (0, 2),
    60: (0, 2),
    61: (0, 0),
    65: (0, 0),
    66: (0, 2),
    68: (0, 1),
    69: (0, 1),
    74: (0, 1),
    75: (0, 0),
    76: (1, 1),
    77: (1, 1),
    78: (1, 2),
    79: (1, 2),
    88: (0, 0),
    89: (0, 0),
    90: (0, 1),
    91: (0, 0),
    92: (0, 0),
}


@pytest.mark.parametrize("version", range(5))
def test_every_version_lists_what_apache_kafka_lists_of_the_apis_that_are_served(
    client: Client, version: int
) -> None:
    answer = client.call(ApiVersionsRequest(**SOFTWARE), version)
    assert answer.error_code == ErrorCode.NONE
    listed = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert listed == {key: APACHE_KAFKA_4_2[key] for key in HANDLERS}


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


def test_pipelined_requests_are_answered_in_their_order(client: Client) -> None:
    for number in range(50):
        client.send(ApiVersionsRequest(**SOFTWARE), number % 5, correlation_id=number)
    for number in range(50):
        client.receive(ApiVersionsResponse, number % 5, correlation_id=number)


def test_a_client_without_an_id_is_served(client: Client) -> None:
    client.client_id = None
    assert client.call(ApiVersionsRequest(**SOFTWARE), 4).error_code == ErrorCode.NONE
