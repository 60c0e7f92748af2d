"""A `korvet serve` whose workers speak no Kafka but echo lines: for tests of the processes alone.

Run as `python -m tests.support.echo_broker [--config FILE] name=value ...`. A line gets the answer `<pid> <line>`;
the line `slow` is answered a second later, `late` after half a minute, `advertised` gets the addresses that clients
use, `fds` the descriptors that the worker has open, and `environ` the names of its variables. A worker whose settings
have `num.partitions` 13 dies at its start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.errors import ConfigError
from korvet.server.supervisor import roles
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.startup import Runtime
from korvet.server.supervisor.supervisor import Supervisor

_DELAYS_S = {"slow": 1.0, "late": 30.0}


def worker(runtime: Runtime, settings: Settings, link: SupervisorLink) -> None:
    import gevent
    from gevent import socket
    from gevent.pool import Pool
    from gevent.server import StreamServer

    from korvet.server.supervisor import ports

    listeners = runtime.listeners(settings)
    if settings.num_partitions == 13:
        raise RuntimeError("this worker was ordered to die")

    def answer(line: str) -> str:
        gevent.sleep(_DELAYS_S.get(line, 0.0))
        if line == "advertised":
            return " ".join(str(item.advertised) for item in listeners)
        if line == "environ":
            return " ".join(os.environ)
        if line == "fds":
            return " ".join(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists())
        return f"{os.getpid()} {line}"

    def serve(connection: socket.socket, _peer: object) -> None:
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                lines.write(f"{answer(line.strip())}\n")
                lines.flush()

    stop = link.stop_event()
    pool, servers = Pool(), []
    for item in listeners:
        listener = socket.socket(ports.family(item.address))
        ports.prepare_shared(listener)
        listener.bind(item.address)
        listener.listen(64)
        servers.append(StreamServer(listener, serve, spawn=pool))
        servers[-1].start()
    link.report_ready()
    stop.wait()
    link.report_draining()
    for server in servers:
        server.stop(timeout=settings.drain_timeout_ms / 1000)


def main(arguments: list[str]) -> int:
    config = None
    if arguments[:1] == ["--config"]:
        config, arguments = Path(arguments[1]), arguments[2:]
    overrides = dict(argument.split("=", 1) for argument in arguments)
    roles.run_worker = worker
    try:
        return Supervisor(load(config, {}, overrides)).run()
    except ConfigError as error:
        sys.stderr.write(f"korvet: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
