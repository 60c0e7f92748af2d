"""A caller of the console over HTTP, as a browser or a script would call it."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlencode

TOKEN = "a token for tests, long enough"


class Reply(NamedTuple):
    """A response; names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Caller:
    """Calls one ops port, by TLS if that is given; `token` goes with changes."""

    def __init__(self, address: str, token: str | None = TOKEN, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._token = token

    def call(self, method: str, target: str, body: Any = None, **headers: str) -> Reply:
        """Return the response; headers have `_` for `-`, and a body that is not bytes is sent as JSON."""
        connection = (
            http.client.HTTPSConnection(self._address, timeout=60, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(self._address, timeout=60)
        )
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, target, body, given)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **parameters: object) -> Reply:
        """Send a GET request."""
        return self.call("GET", f"{path}?{urlencode(parameters)}" if parameters else path)

    def data(self, path: str, **parameters: object) -> Any:
        """Return the data of a GET that succeeds."""
        reply = self.get(f"/api/{path}", **parameters)
        assert reply.status == 200, reply
        return reply.data

    def change(self, method: str, path: str, body: Any) -> Reply:
        """Send a request for a change."""
        authorization = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return self.call(method, f"/api/{path}", body, **authorization)

    def changed(self, method: str, path: str, body: Any) -> Any:
        """Return the answer to a change that succeeds."""
        reply = self.change(method, path, body)
        assert reply.status == 200, reply
        return reply.data
