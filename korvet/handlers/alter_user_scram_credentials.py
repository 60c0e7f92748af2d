"""AlterUserScramCredentials (key 51), version 0: creates, changes and deletes SCRAM credentials (KIP-554).

The failure of one user leaves the others unaffected. As by Kafka's controller one request changes one credential of a
user: that of another mechanism comes with the next one. A user that is named twice gets the error of its first change,
if that has one.

Errors: DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_fields
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import alter_user_scram_credentials as wire
from korvet.protocol.types import ScramMechanism
from korvet.security.credentials import Deletion, Upsertion


def handle(
    request: wire.AlterUserScramCredentialsRequest, _caller: Caller, services: Services
) -> wire.AlterUserScramCredentialsResponse:
    changes = _by_user(request)

    def alter(user: str) -> wire.AlterUserScramCredentialsResult:
        if len(changes[user]) > 1:
            services.users.check(user, changes[user][0])
            message = "A user credential cannot be altered twice in the same request"
            raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
        services.users.alter(user, changes[user])
        return _result(user, None)

    results = each_done(changes, alter, _result)
    return wire.AlterUserScramCredentialsResponse(results=results)


def _by_user(request: wire.AlterUserScramCredentialsRequest) -> dict[str, list[Deletion | Upsertion]]:
    changes = defaultdict[str, list[Deletion | Upsertion]](list)
    for deletion in request.deletions:
        changes[deletion.name].append(Deletion(deletion.mechanism))
    for new in request.upsertions:
        changes[new.name].append(Upsertion(new.mechanism, new.iterations, new.salt, new.salted_password))
    return changes


def _result(user: str, error: KafkaError | None) -> wire.AlterUserScramCredentialsResult:
    return wire.AlterUserScramCredentialsResult(user=user, **error_fields(error))


def _changes(
    request: wire.AlterUserScramCredentialsRequest, response: wire.AlterUserScramCredentialsResponse
) -> Iterator[Outcome]:
    for result in response.results:
        changes = ", ".join(
            f"{_mechanism_name(change.mechanism)} {what}"
            for what, credentials in (("deleted", request.deletions), ("set", request.upsertions))
            for change in credentials
            if change.name == result.user
        )
        yield f"user {result.user} ({changes})", result.error_code


def _mechanism_name(number: int) -> str:
    known = number in tuple(ScramMechanism)
    return ScramMechanism(number).sasl_name if known else f"mechanism {number}"


register(
    handle,
    lambda request, _caller, error: wire.AlterUserScramCredentialsResponse(
        results=[_result(user, error) for user in _by_user(request)]
    ),
    rights=[on_cluster(ALTER)],
    changes=_changes,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
