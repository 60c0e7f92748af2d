"""The rehearsal of an upgrade: the version on disk shows that it could take over, before it is let.

Knows the process that does it, and its deadline; not what happens afterwards. That process ends where the next
supervisor would begin, and everything that may go wrong by then (a package half installed, a setting that is no more,
a script that needs another right in Redis) goes wrong in it, while the broker serves on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable

from korvet.server import handover
from korvet.server.handover import Handover
from korvet.server.parent_death import die_with_parent

_SECONDS_MAX = 60.0
_LAST_WORDS_BYTES = 4096


class Rehearsal:
    """One rehearsal under way; raises OSError where it cannot even begin."""

    def __init__(self, handed: Handover, environ: Iterable[tuple[str, str]]) -> None:
        self.deadline = time.monotonic() + _SECONDS_MAX
        fd = handover.write(handed)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what started this process
                handover.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                env={**dict(environ), handover.REHEARSAL: str(fd)},
                pass_fds=(fd,),
                # The supervisor has one thread, so there is no lock that this could find taken.
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509
            )
        except OSError:
            self._words.close()
            raise
        finally:
            os.close(fd)

    def problem(self) -> str | None:
        """Return None while it goes on, "" when all went well, and else what did not."""
        if self._process.poll() is None:
            if time.monotonic() < self.deadline:
                return None
            self._process.kill()
            self._process.wait()
            return f"it took longer than {_SECONDS_MAX:.0f} s"
        if self._process.returncode == 0:
            return ""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _LAST_WORDS_BYTES))
        lines = self._words.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{said} (status {self._process.returncode})"

    def end(self) -> None:
        """End it where it still runs."""
        self._process.kill()
        self._process.wait()
        self._words.close()
