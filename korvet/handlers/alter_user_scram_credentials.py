"""AlterUserScramCredentials (key 51), version 0: creates, changes and deletes SCRAM credentials (KIP-554).

A request changes a user once; the failure of one leaves the others unaffected.
"""

from __future__ import annotations

from collections import Counter

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_code, error_message
from korvet.handlers.context import Caller, SecurityApi
from korvet.handlers.registry import register
from korvet.protocol.messages import alter_user_scram_credentials as wire
from korvet.security import audit

_Change = wire.ScramCredentialDeletion | wire.ScramCredentialUpsertion


def handle(
    request: wire.AlterUserScramCredentialsRequest, caller: Caller, api: SecurityApi
) -> wire.AlterUserScramCredentialsResponse:
    """Delete what is to be deleted, then create or replace the others."""
    changes = _changes(request)
    times = Counter(each.name for each in changes)
    twice = KafkaError(
        ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    )

    def alter(change: _Change) -> wire.AlterUserScramCredentialsResult:
        if isinstance(change, wire.ScramCredentialDeletion):
            api.users.delete(change.name, change.mechanism)
        else:
            api.users.upsert(
                change.name, change.mechanism, change.iterations, change.salt, change.salted_password
            )
        what = "deleted" if isinstance(change, wire.ScramCredentialDeletion) else "set"
        audit.changed(caller.session, f"credential {what}", user=change.name, mechanism=change.mechanism)
        return _result(change, None)

    by_user = {each.name: each for each in changes}.values()
    return wire.AlterUserScramCredentialsResponse(
        results=each_done(
            [(each, twice if times[each.name] > 1 else None) for each in by_user], alter, _result
        )
    )


def refuse(
    request: wire.AlterUserScramCredentialsRequest, _caller: Caller, error: KafkaError
) -> wire.AlterUserScramCredentialsResponse:
    """Answer every user with the error."""
    by_user = {each.name: each for each in _changes(request)}.values()
    return wire.AlterUserScramCredentialsResponse(results=[_result(each, error) for each in by_user])


def _changes(request: wire.AlterUserScramCredentialsRequest) -> list[_Change]:
    return [*request.deletions, *request.upsertions]


def _result(change: _Change, error: KafkaError | None) -> wire.AlterUserScramCredentialsResult:
    return wire.AlterUserScramCredentialsResult(
        user=change.name, error_code=error_code(error), error_message=error_message(error)
    )


register(
    wire.AlterUserScramCredentialsRequest,
    SecurityApi,
    handle,
    refuse,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
