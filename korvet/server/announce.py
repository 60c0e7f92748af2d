"""What `korvet serve` prints once it is ready: where to connect, where the records are, and a line to try.

Knows words; nothing of processes. Lines of the form `name  value` on stdout; logs go to stderr.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import korvet
from korvet.config import Address, Settings
from korvet.server.listeners import Bound
from korvet.server.redis_check import ServerFacts

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

_PYTHON = """\
{python} - <<'END'
import asyncio, aiokafka
async def main():
    async with aiokafka.AIOKafkaProducer(bootstrap_servers="{address}") as producer:
        await producer.send_and_wait("hello", b"world")
    consumer = aiokafka.AIOKafkaConsumer("hello", bootstrap_servers="{address}", auto_offset_reset="earliest")
    async with consumer:
        print(await consumer.getone())
asyncio.run(main())
END"""
_KCAT = "echo world | kcat -b {address} -t hello -P && kcat -b {address} -t hello -C -e"


def ready(
    *,
    settings: Settings,
    listeners: Sequence[Bound],
    workers: int,
    data: str,
    facts: ServerFacts,
    ops: Address | None,
) -> str:
    """Return the announcement of a broker, ending in a newline; `data` says where its records are."""
    first, *others = listeners
    counted = f"{workers} worker{'s' if workers != 1 else ''}"
    rows = [
        ("bootstrap", _reached(first, counted, named=bool(others))),
        *(("", _reached(each, named=True)) for each in others),
        ("broker", f"{settings.broker_id} of cluster {settings.cluster_id}"),
        ("data", f"{data}, {facts.name} {facts.version}"),
        ("durability", durability(facts)),
        *([("lake", where)] if (where := lake(settings)) else ()),
        ("ops", f"http://{ops} (console, /healthz /readyz /metrics)" if ops else "off"),
        ("stop", "Ctrl-C, or SIGTERM; SIGHUP reads the configuration again"),
    ]
    lines = [f"  {name:<10}  {value}" for name, value in rows]
    # At the left edge, because the end of a here-document must stand there to be pasted.
    return (
        "\n".join([f"Korvet {korvet.__version__} is ready", *lines, "Try:", _example(str(first.advertised))])
        + "\n"
    )


def _reached(listener: Bound, *more: str, named: bool) -> str:
    """Return what the clients of a listener are told, its name where it is not the only one, and where it is bound."""
    facts = [listener.name] if named else []
    facts += more
    if listener.address != listener.advertised:
        facts.append(f"listening on {listener.address}")
    return f"{listener.advertised} ({', '.join(facts)})" if facts else str(listener.advertised)


def durability(facts: ServerFacts) -> str:
    """Return in words what a crash may cost."""
    if facts.appendonly is None:
        return "the server does not tell"
    if not facts.appendonly:
        return "appendonly is off: a restart of Redis loses what came after its last snapshot"
    return _DURABILITY.get(
        facts.appendfsync or "", "appendonly is on, as often as the server is configured to"
    )


def lake(settings: Settings) -> str:
    """Return in words where the archive is and who writes it, nothing where there is none."""
    path = settings.lake_path
    if not path:
        return ""
    where = path if "://" in path else str(Path(path).expanduser().absolute())
    if settings.lake_interval_ms:
        every = f"every {settings.lake_interval_ms / 1000:g} s"
        return f"{where}, {every}, topics with remote.storage.enable=true"
    return f"{where}, written by korvet lake archive"


def _example(address: str) -> str:
    if shutil.which("kcat"):
        return _KCAT.format(address=address)
    # aiokafka is one of Korvet's own dependencies, so this works wherever Korvet does.
    return _PYTHON.format(python=sys.executable, address=address)
