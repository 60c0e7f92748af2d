"""The pages of the console as they are sent: what lies in web/, read once, and the headers that bound what it can do.

Knows files and headers; nothing of brokers. The pages take nothing from elsewhere and run nothing that is written into
them: what somebody put into a record or a name stays text, whatever it looks like.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from korvet.server.ops_http import Answer

_WEB = Path(__file__).parent / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DOCUMENT = "index.html"

HEADERS = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""What every answer of the console carries, pages and data."""


class Site:
    """The files of the pages, by the path that they are asked for."""

    def __init__(self) -> None:
        """Read them; raises OSError where the installation is incomplete."""
        self._pages: dict[str, Answer] = {}
        for file in sorted(_WEB.iterdir()):
            answer = Answer(HTTPStatus.OK, _TYPES[file.suffix], file.read_bytes(), HEADERS)
            self._pages[f"/console/{file.name}"] = answer
        self._pages["/"] = self._pages["/console"] = self._pages[f"/console/{_DOCUMENT}"]

    def page(self, path: str) -> Answer | None:
        """Return what lies there; None for nothing."""
        return self._pages.get(path)
