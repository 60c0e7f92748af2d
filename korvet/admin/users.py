"""Requests about users' SCRAM credentials (KIP-554): list, set and delete them. Reached as `AdminClient.users`.

A password is salted and hashed here, and never sent.
"""

from __future__ import annotations

import hashlib
import secrets

from korvet.admin.errors import raise_error_in
from korvet.admin.routing import ClusterClient
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from korvet.protocol.types import ScramMechanism

ITERATIONS_DEFAULT = 4096
_SALT_BYTES = 26


class Users:
    """The requests about users."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def list(self) -> dict[str, dict[ScramMechanism, int]]:
        """Return for each user with SCRAM credentials their mechanisms and iterations. Raises AdminError.

        >>> admin.users.set_password("alice", "alice-secret", ScramMechanism.SCRAM_SHA_512)
        >>> admin.users.list()["alice"]
        {<ScramMechanism.SCRAM_SHA_512: 2>: 4096}
        """
        request = DescribeUserScramCredentialsRequest(users=None)
        response = self._client.call_any(request, DescribeUserScramCredentialsResponse)
        raise_error_in(response.error_code, response.error_message)
        return {
            each.user: {ScramMechanism(info.mechanism): info.iterations for info in each.credential_infos}
            for each in response.results
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
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(
                mechanism.digest, password.encode(), salt, max(1, iterations)
            ),
        )
        self._alter(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        """Delete a user's credential for one mechanism. Raises AdminError: RESOURCE_NOT_FOUND if there is none.

        >>> admin.users.set_password("bob", "bob-secret", ScramMechanism.SCRAM_SHA_256)
        >>> admin.users.delete("bob", ScramMechanism.SCRAM_SHA_256)
        """
        deletion = ScramCredentialDeletion(name=user, mechanism=mechanism)
        self._alter(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))

    def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        response = self._client.retry(
            lambda deadline: self._client.attempt_at_controller(deadline).send(
                request, AlterUserScramCredentialsResponse
            )
        )
        for each in response.results:
            raise_error_in(each.error_code, each.error_message)
