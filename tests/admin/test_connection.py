"""What the admin client makes of addresses, versions, and peers that break the protocol."""

from __future__ import annotations

import struct

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.connection import ANSWER_BYTES_MAX, Address, Connection, Deadline, parse_address
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    BrokerError,
    ConnectionFailedError,
    GroupIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnresolvedError,
    UnsupportedError,
    error_in,
)
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from tests.admin import hostile
from tests.admin.outcomes import code_of
from tests.support.in_process import InProcessBroker

VERSIONS, METADATA = ApiVersionsRequest.api.key, MetadataRequest.api.key


def failure(address: str, kind: type[AdminError]) -> str:
    """Ask what answers at an address for topics; returns the message of the error that must come of it."""
    # Only who is away keeps the client waiting.
    timeout = 0.5 if kind is ConnectionFailedError else 30
    with AdminClient(address, timeout=timeout) as admin, pytest.raises(kind) as caught:
        admin.topology()
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("broker.example:1234", Address("broker.example", 1234)),
        ("broker.example", Address("broker.example", 9092)),
        ("[::1]:1234", Address("::1", 1234)),
        ("[::1]", Address("::1", 9092)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", ",", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x", "::1", "[]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r":PORT|port|bootstrap"):
        AdminClient(text)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_leaves_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        AdminClient("127.0.0.1:9092", timeout=timeout)


def test_a_bootstrap_server_that_is_away_leaves_the_others(broker: InProcessBroker) -> None:
    with AdminClient(f"127.0.0.1:1, {broker.bootstrap}") as admin:
        assert admin.topology().brokers


def test_unreachable_brokers_are_reported_with_the_last_reason() -> None:
    assert "127.0.0.1:1" in failure("127.0.0.1:1", ConnectionFailedError)


@pytest.mark.slow
def test_a_name_that_no_resolver_takes_is_an_address_that_is_away() -> None:
    failure("x" * 64 + ".example:1", UnresolvedError)


def test_a_lost_connection_is_opened_again(broker: InProcessBroker) -> None:
    with AdminClient(broker.bootstrap) as admin:
        admin.topology()
        for connection in admin._connections.values():
            connection._socket.shutdown(2)
        assert admin.topology().brokers


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        pytest.param(lambda *_: b"", ConnectionFailedError, "does not respond", id="silent"),
        pytest.param(lambda *_: b"HTTP/1.1 400 \r\n", BadAnswerError, "not a Kafka broker", id="HTTP"),
        pytest.param(
            lambda _key, _version, sent: hostile.frame(sent + 1, b"\0" * 20),
            *(BadAnswerError, "not sent"),
            id="answer to another request",
        ),
        pytest.param(
            lambda _key, version, sent: hostile.frame(sent, hostile.versions({}, version)),
            *(UnsupportedError, "does not serve Metadata"),
            id="without the API",
        ),
    ],
)
def test_a_peer_that_cannot_be_used_is_one_clear_error(
    answer: hostile.Answer, kind: type[AdminError], message: str
) -> None:
    with hostile.peer(answer) as address:
        assert message in failure(address, kind)


def test_a_peer_that_hangs_up_has_closed_the_connection() -> None:
    with (
        hostile.peer(lambda *_: None) as address,
        pytest.raises(ConnectionFailedError, match="closed the connection"),
    ):
        Connection(parse_address(address), "client", Deadline(30))


@pytest.mark.parametrize("size", [-1, 0, 3, ANSWER_BYTES_MAX + 1, 2**31 - 1])
def test_an_answer_of_an_impossible_size_is_not_read(size: int) -> None:
    with hostile.peer(lambda *_: struct.pack(">i", size)) as address:
        assert f"{size} bytes" in failure(address, BadAnswerError)


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\x7f", b"\0\0\xff\xff\xff\xff\x7f"])
def test_an_answer_that_ends_too_early_is_one_clear_error(body: bytes) -> None:
    with hostile.peer(lambda _key, _version, sent: hostile.frame(sent, body)) as address:
        assert "cannot be read" in failure(address, BadAnswerError)


@pytest.mark.parametrize("served", [(99, 100), (0, 3)])
def test_versions_that_cannot_carry_the_question_are_not_asked(served: tuple[int, int]) -> None:
    def answer(key: int, version: int, sent: int) -> bytes:
        assert key == VERSIONS
        return hostile.frame(sent, hostile.versions({METADATA: served}, version))

    with hostile.peer(answer) as address:
        failure(address, UnsupportedError)


def test_a_broker_too_old_for_the_question_of_versions_is_asked_again_in_version_0() -> None:
    asked = []

    def answer(_key: int, version: int, sent: int) -> bytes:
        asked.append(version)
        refusal = struct.pack(">hi", ErrorCode.UNSUPPORTED_VERSION, 0)
        return hostile.frame(sent, refusal if version else hostile.versions({}, 0))

    with hostile.peer(answer) as address:
        failure(address, UnsupportedError)
    assert asked == [3, 0]


def test_codes_have_classes_and_unknown_codes_are_reported_by_number() -> None:
    assert error_in(0) is None
    error = error_in(3, "no orders")
    assert error is not None
    assert type(error) is UnknownTopicOrPartitionError
    assert str(error) == "UNKNOWN_TOPIC_OR_PARTITION: no orders"
    assert not error.retriable
    plain = error_in(ErrorCode.NOT_COORDINATOR)
    assert plain is not None
    assert type(plain) is BrokerError
    assert plain.retriable
    assert "error 31999" in str(error_in(31999))


@pytest.mark.parametrize("group", ["x" * 40_000, "\udc80"])
def test_a_group_name_that_cannot_be_sent_is_refused_alone(broker: InProcessBroker, group: str) -> None:
    with AdminClient(broker.bootstrap) as admin:
        with pytest.raises(BrokerError, match="INVALID_GROUP_ID"):
            admin.offsets.committed(group)
        outcomes = admin.groups.describe([group, "not there"])
    assert code_of(outcomes[group]) is ErrorCode.INVALID_GROUP_ID
    assert isinstance(outcomes["not there"], GroupIdNotFoundError)
