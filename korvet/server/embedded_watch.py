"""The embedded server while the broker runs: one that ended is started again, ever more slowly.

Knows the server and its back-off; not children, nor what they do without it. There may be none: then nothing is due.
"""

from __future__ import annotations

import time

from korvet import logs
from korvet.errors import ConfigError
from korvet.server.backoff import Backoff
from korvet.server.data_dir import LockedError
from korvet.server.embedded import EmbeddedServer

_log = logs.Log(__name__)


class EmbeddedWatch:
    """Keeps `embedded` running; None is a broker on a Redis of somebody else's."""

    def __init__(self, embedded: EmbeddedServer | None) -> None:
        self._embedded = embedded
        self._backoff = Backoff()
        self._started_at = time.monotonic()
        self.restart_at: float | None = None
        """When it is to be started again, in monotonic seconds; None while it runs."""

    def look(self) -> None:
        """Notice an end, and act on a restart that is due."""
        if self._embedded is None:
            return
        if self.restart_at is None and (how := self._embedded.ended()):
            delay_s = self._backoff.delay_s(time.monotonic() - self._started_at)
            self.restart_at = time.monotonic() + delay_s
            _log.error("the embedded server ended", how=how, again_in_s=delay_s)
        if self.restart_at is not None and self.restart_at <= time.monotonic():
            self._restart(self._embedded)

    def _restart(self, embedded: EmbeddedServer) -> None:
        self.restart_at = None
        self._started_at = time.monotonic()
        try:
            embedded.launch()
        except (LockedError, ConfigError) as error:
            delay_s = self._backoff.delay_s(0.0)
            self.restart_at = time.monotonic() + delay_s
            _log.error("no embedded server", reason=error, again_in_s=delay_s)
        else:
            _log.info("started the embedded server", pid=embedded.pid)
