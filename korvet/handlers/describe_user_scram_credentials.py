"""DescribeUserScramCredentials (key 50), version 0: the users that have SCRAM credentials, without these (KIP-554).

Errors: DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields, refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_cluster
from korvet.protocol.messages import describe_user_scram_credentials as wire
from korvet.protocol.types import ScramMechanism


def handle(
    request: wire.DescribeUserScramCredentialsRequest, _caller: Caller, services: Services
) -> wire.DescribeUserScramCredentialsResponse:
    users = services.users.iterations()
    times = Counter([user.name for user in request.users or ()] or list(users))
    results = [_result(user, users.get(user), twice=times[user] > 1) for user in times]
    return wire.DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _result(
    user: str, iterations: Mapping[ScramMechanism, int] | None, *, twice: bool
) -> wire.DescribeUserScramCredentialsResult:
    if iterations and not twice:
        infos = [
            wire.CredentialInfo(mechanism=mechanism, iterations=count)
            for mechanism, count in iterations.items()
        ]
        return wire.DescribeUserScramCredentialsResult(user=user, error_message=None, credential_infos=infos)
    if twice:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        error = KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
    else:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        error = KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return wire.DescribeUserScramCredentialsResult(user=user, **error_fields(error))


register(handle, refuse_whole(wire.DescribeUserScramCredentialsResponse), rights=[on_cluster(DESCRIBE)])
