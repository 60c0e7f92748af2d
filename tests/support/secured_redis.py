"""A Redis as docs/lake/security.md has it: TLS with client certificates, and the user of `korvet redis-acl` alone.

The embedded server is built without TLS, so a front before it speaks TLS, in a thread: its clients block this process.
"""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.authority import Authority
from tests.support.redis_servers import embedded_server

USER, PASSWORD = "korvet", "hunter2-of-redis"
_CHUNK = 1 << 16


class SecuredRedis(NamedTuple):
    """`url` names the user, the CA and the client's certificate, by files; `anonymous_url` no certificate."""

    url: str
    anonymous_url: str
    password_file: Path


@contextlib.contextmanager
def secured_redis(directory: Path) -> Iterator[SecuredRedis]:
    """Run one, with the files that it and its clients need in `directory`."""
    authority = Authority(directory / "ca")
    server, client = authority.issue("/CN=redis"), authority.issue("/CN=korvet", hosts="")
    password_file, users = directory / "redis-password", directory / "users.acl"
    password_file.write_text(f"{PASSWORD}\n")
    printed = subprocess.run(
        [sys.executable, "-m", "korvet", "redis-acl", "--password-file", str(password_file)],
        capture_output=True,
        text=True,
        check=True,
    )
    users.write_text(f"user default off\n{printed.stdout}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with (
        embedded_server("--aclfile", str(users)) as path,
        tls_front(path.removeprefix("unix://"), context) as port,
    ):
        anonymous = f"rediss://{USER}@127.0.0.1:{port}/0?ssl_ca_certs={authority.certificate}"
        url = f"{anonymous}&ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
        yield SecuredRedis(url, anonymous, password_file)


@contextlib.contextmanager
def tls_front(path: str, context: ssl.SSLContext) -> Iterator[int]:
    """Terminate TLS on a port, which is given, and pass all on to a unix socket."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.socket(socket.AF_UNIX) as server,
            ):
                server.connect(path)
                _pass_on(client, server)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as front:
        front.daemon_threads = True
        threading.Thread(target=front.serve_forever, name="TLS front", daemon=True).start()
        yield front.server_address[1]
        front.shutdown()


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Pass on both ways, in one thread: no two may use a connection of OpenSSL."""
    while True:
        for source in [client] if client.pending() else select.select([client, server], [], [])[0]:
            if not (data := source.recv(_CHUNK)):
                return
            (server if source is client else client).sendall(data)
