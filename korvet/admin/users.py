"""Requests about users' SCRAM credentials (KIP-554): list, set and delete them. Reached as `AdminClient.users`.

A password is salted and hashed here, and never sent.
"""

from __future__ import annotations

import hashlib
import secrets

from korvet.admin.errors import raise_error_in
from korvet.admin.routing import Requests, Route
from korvet.protocol.messages import alter_user_scram_credentials as altering
from korvet.protocol.messages import describe_user_scram_credentials as describing
from korvet.protocol.types import ScramMechanism

ITERATIONS_DEFAULT = 4096
_SALT_BYTES = 26


class Users(Requests):
    """The requests about users."""

    def list(self) -> dict[str, dict[ScramMechanism, int]]:
        """Return for each user with SCRAM credentials their mechanisms and iterations. Raises AdminError.

        >>> admin.users.set_password("alice", "alice-secret", ScramMechanism.SCRAM_SHA_512)
        >>> admin.users.list()["alice"]
        {<ScramMechanism.SCRAM_SHA_512: 2>: 4096}
        """
        request = describing.DescribeUserScramCredentialsRequest(users=None)
        response = self._client.call(request, describing.DescribeUserScramCredentialsResponse)
        return {
            result.user: {ScramMechanism(info.mechanism): info.iterations for info in result.credential_infos}
            for result in response.results
        }

    def set_password(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism,
        *,
        iterations: int = ITERATIONS_DEFAULT,
    ) -> None:
        """Create a user's credential for one mechanism, or replace it. Raises AdminError.

        UNACCEPTABLE_CREDENTIAL for fewer than 4,096 iterations, or more than 16,384.

            >>> admin.users.set_password("alice", "alice-secret", ScramMechanism.SCRAM_SHA_512)
        """
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, max(1, iterations))
        upsertion = altering.ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
        )
        self._alter(altering.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        """Delete a user's credential for one mechanism. Raises AdminError: RESOURCE_NOT_FOUND if there is none.

        >>> admin.users.set_password("bob", "bob-secret", ScramMechanism.SCRAM_SHA_256)
        >>> admin.users.delete("bob", ScramMechanism.SCRAM_SHA_256)
        """
        deletion = altering.ScramCredentialDeletion(name=user, mechanism=mechanism)
        self._alter(altering.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))

    def _alter(self, request: altering.AlterUserScramCredentialsRequest) -> None:
        answer = altering.AlterUserScramCredentialsResponse
        for result in self._client.call(request, answer, Route.CONTROLLER).results:
            raise_error_in(result.error_code, result.error_message)
