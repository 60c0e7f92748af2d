"""An S3-compatible store in memory: `.venv/stores/bin/python s3_server.py` writes its port to stdout, and serves.

Knows nothing of Korvet, and runs in an environment of its own. Each request is answered as a whole before the next one
is looked at: whether an object is there and its being written are one step, as with S3 (conditional writes). After
a PUT of /refuse/N the next N requests get status 503, and each is a line of stdout.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.server import (  # type: ignore[import-not-found] # it is in that other environment only
    DomainDispatcherApplication,
    create_backend_app,
)
from werkzeug.serving import WSGIRequestHandler, make_server

UNAVAILABLE = b"<Error><Code>ServiceUnavailable</Code><Message>Please try again.</Message></Error>"


class OneByOne:
    """A store whose requests wait for each other."""

    def __init__(self) -> None:
        self._store = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()
        self._refusals = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        """Answer a request of WSGI, all of it."""
        with self._turn:
            if environ["PATH_INFO"].startswith("/refuse/"):
                self._refusals = int(environ["PATH_INFO"].rpartition("/")[2])
                start_response("200 OK", [])
                return []
            if self._refusals == 0:
                return list(self._store(environ, start_response))
            self._refusals -= 1
            sys.stdout.write("refused\n")
            sys.stdout.flush()
            start_response("503 Service Unavailable", [("Content-Type", "application/xml")])
            return [UNAVAILABLE]


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_request(self, *_: Any) -> None:
        """Tell nobody."""


def main() -> None:
    """Serve until somebody ends it."""
    server = make_server("127.0.0.1", int(sys.argv[1]), OneByOne(), threaded=True, request_handler=Quiet)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
