"""DescribeUserScramCredentials (key 50), versions 0-0, flexible from 0. Which users have credentials.

Since KIP-554.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode
from korvet.protocol.wire import int8, int16, int32, string


class UserName(Part, kw_only=True):
    name: string


class DescribeUserScramCredentialsRequest(Message, kw_only=True):
    """Names users; null or none are all."""

    api = Api(key=50, versions=(0, 0), flexible=0)

    users: list[UserName] | None


class CredentialInfo(Part, kw_only=True):
    mechanism: int8
    iterations: int32


class DescribeUserScramCredentialsResult(Part, kw_only=True):
    user: string
    error_code: int16 = 0
    error_message: string | None
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(ResponseWithCode, kw_only=True):
    error_message: string | None
    results: list[DescribeUserScramCredentialsResult] = []
