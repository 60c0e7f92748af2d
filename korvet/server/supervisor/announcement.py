"""What `korvet serve` says once it is ready: where to connect, where the records are, and a line to try.

It prints that on stdout; if log lines are JSON, it is one of them, so that who collects the output finds nothing else.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import korvet
from korvet.config.settings import Settings
from korvet.server.supervisor import system
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.startup import Runtime

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


def of(runtime: Runtime, settings: Settings, workers: int) -> str:
    described = facts(runtime, settings, workers) | {
        "stop": "Ctrl-C, or SIGTERM; SIGHUP reads the configuration again"
    }
    rows = [
        f"  {name if at == 0 else '':<10}  {line}"
        for name, value in described.items()
        for at, line in enumerate(value.split("\n"))
    ]
    open_to_all = [listener for listener in runtime.listeners(settings) if not _secured(listener, settings)]
    example = ["Try:", _example(str(open_to_all[0].advertised))] if open_to_all else []
    # At the left edge, because the end of a here-document must stand there to be pasted.
    return "\n".join([f"Korvet {korvet.__version__} is ready", *rows, *example]) + "\n"


def facts(runtime: Runtime, settings: Settings, workers: int) -> dict[str, str]:
    """Return in words what a broker is. Those on several listeners are lines."""
    first, *others = runtime.listeners(settings)
    redis, ops = runtime.prepared.facts, runtime.ops
    counted = f"{workers} worker{'s' if workers != 1 else ''}"
    reached = [
        _reached(first, settings, counted, named=bool(others)),
        *(_reached(other, settings, named=True) for other in others),
    ]
    scheme = "https" if settings.ops_ssl_keystore_location else "http"
    refused = "; ".join(runtime.prepared.refused)
    described = {
        "bootstrap": "\n".join(reached),
        "broker": f"{settings.broker_id} of cluster {settings.cluster_id}",
        "data": f"{runtime.data}, {redis.name} {redis.version}",
        "durability": redis.durability(),
        "producers": refused and f"refused: {refused}",
        "lake": lake(settings),
        "ops": f"{scheme}://{ops} (console, /healthz /readyz /metrics)" if ops else "off",
        "system": "\n".join(system.shortcomings()),
    }
    return {name: said for name, said in described.items() if said}


def _secured(listener: Bound, settings: Settings) -> str:
    """Return how a listener is secured, "" if it is not."""
    protocol = settings.security_protocol(listener.name)
    return protocol if protocol.tls or protocol.sasl else ""


def _reached(listener: Bound, settings: Settings, *more: str, named: bool) -> str:
    """Return what a listener advertises, its name if it is not the only one, how it is secured, where it is bound."""
    facts = [listener.name] if named else []
    if (secured := _secured(listener, settings)) not in ("", *facts):
        facts.append(secured)
    facts += more
    if listener.address != listener.advertised:
        facts.append(f"listening on {listener.address}")
    return f"{listener.advertised} ({', '.join(facts)})" if facts else str(listener.advertised)


def lake(settings: Settings) -> str:
    """Return in words where the archive is and what writes it, "" if there is none."""
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
