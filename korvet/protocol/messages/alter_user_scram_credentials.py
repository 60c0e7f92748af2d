"""AlterUserScramCredentials (key 51), versions 0-0, flexible from 0. Sets and deletes SCRAM credentials.

Since KIP-554. The client salts and hashes the password: the broker never gets it.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import bytestring, int8, int16, int32, string


class ScramCredentialDeletion(Part, kw_only=True):
    name: string
    mechanism: int8


class ScramCredentialUpsertion(Part, kw_only=True):
    name: string
    mechanism: int8
    iterations: int32
    salt: bytestring
    salted_password: bytestring


class AlterUserScramCredentialsRequest(Message, kw_only=True):
    api = Api(key=51, versions=(0, 0), flexible=0)

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResult(Part, kw_only=True):
    user: string
    error_code: int16 = 0
    error_message: string | None


class AlterUserScramCredentialsResponse(Response, kw_only=True):
    results: list[AlterUserScramCredentialsResult] = []
