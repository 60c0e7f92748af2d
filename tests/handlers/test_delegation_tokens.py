"""Requests about delegation tokens are refused as by a Kafka without a secret key for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from korvet.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from korvet.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from korvet.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from korvet.protocol.schema import Message
from korvet.security.session import Session
from tests.handlers.rights import ALICE, Served

RENEWERS = [CreatableRenewers(principal_type="User", principal_name="bob")]
REQUESTS = [
    CreateDelegationTokenRequest(renewers=RENEWERS, max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1),
    ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1),
    DescribeDelegationTokenRequest(owners=None),
]


@pytest.fixture
def served(redis_url: str) -> Iterator[Served]:
    made = Served(redis_url)
    yield made
    made.storage.close()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_tokens_are_disabled_and_before_a_login_not_even_asked_for(served: Served, request_: Message) -> None:
    first, last = request_.api.versions
    for version in range(first, last + 1):
        answer = served.call(request_, version, session=ALICE)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        answer = served.call(request_, version, session=Session("10.0.0.1:1"))
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_a_refused_token_would_be_of_the_requester_or_of_whom_it_names(served: Served) -> None:
    own = served.call(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), session=ALICE)
    assert (own.principal_type, own.principal_name) == ALICE.principal
    asked = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="bob", renewers=[], max_lifetime_ms=-1
    )
    other = served.call(asked, session=ALICE)
    assert (other.principal_type, other.principal_name) == ("User", "bob")
    assert (other.token_requester_principal_type, other.token_requester_principal_name) == ALICE.principal
