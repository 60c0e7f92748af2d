"""What TLS costs a worker's sockets: bytes and requests per second of CPU, beside sockets without it.

Run as `python loadtest/micro/tls.py [CHECKOUT ...]` from the repository; needs openssl. For each checkout (this one
where none is named) a channel sends responses of fetches and answers small requests, with each version of TLS that it
has; the peer's CPU is not counted. Several checkouts are a comparison of their code: PLAINTEXT must not get slower.
"""

from __future__ import annotations

import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUNDS = 7
FETCHES, FETCH_BYTES = 300, 1024 * 1024
PIECES = {"fetch of 1 MiB, one piece": 1, "fetch of 1 MiB, 64 pieces": 64}
REQUESTS, REQUEST_BYTES = 10_000, 100
MODES = ("plain", "TLSv1_2", "TLSv1_3")


def main() -> None:
    """Measure every checkout in turn, round after round, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT]
    found: dict[tuple[str, str, Path], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        made = ("-keyout", f"{directory}/key", "-out", f"{directory}/certificate", "-subj", "/CN=localhost")
        subprocess.run(
            ["/usr/bin/env", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *made],
            check=True,
            capture_output=True,
        )
        store = Path(directory, "store.pem")
        store.write_text(Path(directory, "key").read_text() + Path(directory, "certificate").read_text())
        for _ in range(ROUNDS):
            for checkout in checkouts:
                has_tls = (checkout / "korvet/server/net/tls.py").exists()
                for mode in MODES if has_tls else MODES[:1]:
                    for case, value in _in_a_process(checkout, mode, store):
                        found.setdefault((case, mode, checkout), []).append(value)
    print(f"{'case':28} {'mode':8} {'checkout':24} {'per second of CPU':>20}")
    for (case, mode, checkout), values in sorted(found.items()):
        unit = "requests" if case == "small requests" else "MB"
        print(f"{case:28} {mode:8} {checkout.name:24} {statistics.median(values):>11,.0f} {unit}")


def _in_a_process(checkout: Path, mode: str, store: Path) -> list[tuple[str, float]]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", mode, str(store)],
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return [(case, float(value)) for case, _, value in rows]


def one(mode: str, store: str) -> None:
    """Measure one mode of the code that is imported, and print a line for each case."""
    data = os.urandom(FETCH_BYTES)
    for case, pieces in PIECES.items():
        size = FETCH_BYTES // pieces
        response = [memoryview(data)[at : at + size] for at in range(0, FETCH_BYTES, size)]

        def send(channel: object, response: list[memoryview] = response) -> None:
            for _ in range(FETCHES):
                channel.send(response, 30)  # type: ignore[attr-defined]  # a Channel

        seconds = _cpu(mode, store, send, lambda peer: _read(peer, FETCHES * FETCH_BYTES))
        print(case, FETCHES * FETCH_BYTES / seconds / 1e6)

    def answer(channel: object) -> None:
        for _ in range(REQUESTS):
            channel.send([channel.receive(262_144, 30)], 30)  # type: ignore[attr-defined]  # a Channel

    print("small requests", REQUESTS / _cpu(mode, store, answer, _ask))


def _cpu(
    mode: str, store: str, work: Callable[[object], None], peer_works: Callable[[socket.socket], None]
) -> float:
    """Return the CPU seconds that `work` takes with a channel whose peer is another process."""
    from korvet.server.net.socket import Channel  # noqa: PLC0415 - of the checkout that is measured

    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        peer = socket.create_connection(listener.getsockname())
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if mode != "plain":
            context = ssl.create_default_context(cafile=store)
            context.maximum_version = ssl.TLSVersion[mode]
            peer = context.wrap_socket(peer, server_hostname="localhost")
        peer_works(peer)
        os._exit(0)
    ours, _ = listener.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if mode == "plain":
        channel = Channel(ours)
    else:
        from korvet.config.settings import Settings  # noqa: PLC0415 - as said above
        from korvet.security.tls import ListenerTls  # noqa: PLC0415 - as said above
        from korvet.server.net.tls import Handshakes, TlsChannel  # noqa: PLC0415 - as said above

        channel = TlsChannel(ours, ListenerTls("SSL", Settings(ssl_keystore_location=store)), Handshakes())
        channel.handshake(30)
    begun = time.process_time()
    work(channel)
    seconds = time.process_time() - begun
    os.waitpid(pid, 0)
    channel.close()
    listener.close()
    return seconds


def _read(peer: socket.socket, size: int) -> None:
    buffer = bytearray(1024 * 1024)
    while size > 0:
        size -= peer.recv_into(buffer)


def _ask(peer: socket.socket) -> None:
    request = bytes(REQUEST_BYTES)
    for _ in range(REQUESTS):
        peer.sendall(request)
        _read(peer, REQUEST_BYTES)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main()
