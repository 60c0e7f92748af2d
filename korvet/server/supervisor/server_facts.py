"""What the start of a broker found out about its Redis, which the supervisor keeps and reports."""

from __future__ import annotations

from typing import NamedTuple

from korvet.server.finding import Finding, error, ok, warning

# While an fsync is under way, Redis puts off its next write for up to two seconds ("Redis persistence").
_EVERYSEC = (
    "written to disk once a second: a crash of the machine, or of Redis while the disk is busy, "
    "may lose the last 2 seconds"
)
_DURABILITY = {
    "always": "written to disk before every acknowledgement",
    "everysec": _EVERYSEC,
    "no": "written to disk when the operating system likes: a crash of the machine may lose half a minute",
}


class ServerFacts(NamedTuple):
    """What the check found out; None is what the server does not report (ACL rules, managed services).

    `node` is the master of a cluster that it is about, "" if it is true of all.
    """

    name: str
    version: str
    appendonly: bool | None
    appendfsync: str | None
    findings: tuple[Finding, ...]
    node: str = ""

    def durability(self) -> str:
        """Return in words what a crash may cost."""
        if self.appendonly is None:
            return "unknown: the server does not report whether appendonly is on"
        if not self.appendonly:
            return "appendonly is off: a restart of Redis loses what came after its last snapshot"
        unknown = "appendonly is on, as often as the server is configured to"
        return _DURABILITY.get(self.appendfsync or "", unknown)

    def durability_finding(self) -> Finding:
        said = self.durability()
        if self.appendonly is False:
            return error("durability", said, "redis-cli config set appendonly yes, and in redis.conf")
        if self.appendonly is None:
            return warning("durability", said, "set appendonly to yes")
        if self.appendfsync == "no":
            return warning("durability", said, "set appendfsync to everysec or always")
        return ok("durability", said)
