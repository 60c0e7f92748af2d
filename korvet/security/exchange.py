"""The server's side of one exchange of a SASL mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod

from korvet.errors import AuthenticationError


class Exchange(ABC):
    """`user` is whom the client claims to be, and is once the exchange is `complete`.

    `expires_at` is when its credential ends (seconds since 1970), None if it does not. `refusal` is why the next token
    will be refused, whatever it is.
    """

    def __init__(self) -> None:
        self.user = ""
        self.complete = False
        self.expires_at: float | None = None
        self.refusal: AuthenticationError | None = None

    @abstractmethod
    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next token; raises AuthenticationError."""


def another_authorization_id(user: str) -> AuthenticationError:
    return AuthenticationError(
        "another authorization id than the user",
        "Authentication failed: Client requested an authorization id that is different from username",
        user=user,
    )
