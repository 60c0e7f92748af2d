"""What TLS costs a worker's sockets: bytes and requests per second of CPU, beside sockets without it.

Run as `python loadtest/micro/tls.py` from the repository; needs openssl. The core's sockets answer requests of one peer
at a time, with responses as large as those of fetches or as small as the requests, with each version of TLS. The peer's
CPU is not counted.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from korvet_core import ClientSockets, TlsServer

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.config.settings import Settings
from korvet.security.tls import ListenerTls
from korvet.server.net.sockets import AHEAD_BYTES_MAX, HANDSHAKES_MAX, PIPELINED_MAX

ROUNDS = 7
MIB = 1024 * 1024
REQUEST = b"\0\0\0\x60\0\x03".ljust(100, b"\0")
"""Metadata, as far as the core looks at it."""
CASES = {
    "responses of 1 MiB, one piece": (300, [bytes(MIB)]),
    "responses of 1 MiB, 64 pieces": (300, [bytes(MIB // 64)] * 64),
    "small requests and answers": (10_000, [bytes(100)]),
}
MODES = ("plain", "TLSv1_2", "TLSv1_3")


def main() -> None:
    """Measure each mode in turn, round after round, and print medians."""
    values: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        made = ("-keyout", f"{directory}/key", "-out", f"{directory}/certificate", "-subj", "/CN=localhost")
        subprocess.run(
            ["/usr/bin/env", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *made],
            check=True,
            capture_output=True,
        )
        store = Path(directory, "store.pem")
        store.write_text(Path(directory, "key").read_text() + Path(directory, "certificate").read_text())
        server = ListenerTls("SSL", Settings(ssl_keystore_location=str(store))).server
        for _ in range(ROUNDS):
            for case, (count, pieces) in CASES.items():
                for mode in MODES:
                    spent = _cpu(mode, store, None if mode == "plain" else server, count, pieces)
                    values.setdefault((case, mode), []).append(spent)
    print(f"{'case':32} {'mode':8} {'per second of CPU':>20}")
    for (case, mode), seconds in values.items():
        count, pieces = CASES[case]
        done, unit = (count * MIB / 1e6, "MB") if len(b"".join(pieces)) == MIB else (count, "requests")
        print(f"{case:32} {mode:8} {done / statistics.median(seconds):>11,.0f} {unit}")


def _cpu(mode: str, store: Path, server: TlsServer | None, count: int, pieces: list[bytes]) -> float:
    """Return the CPU seconds that this process takes for `count` requests of a peer in another process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if not pid:
            _ask(listener.getsockname(), mode, store, count, sum(map(len, pieces)))
            os._exit(0)
        ours, _ = listener.accept()
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ours.settimeout(0)
    sockets: ClientSockets[str] = ClientSockets(
        idle_s=None,
        receive_s=60,
        produce_frame_max=MIB,
        other_frame_max=MIB,
        frames_max=PIPELINED_MAX,
        ahead_bytes=AHEAD_BYTES_MAX,
        budget_bytes=64 * MIB,
        login_budget_bytes=MIB,
        half_budget_bytes=MIB,
        handshakes_max=HANDSHAKES_MAX,
        now_s=time.monotonic(),
    )
    identity = sockets.adopt(ours.detach(), "peer", None, server)
    poll = select.poll()
    poll.register(sockets.fileno(), select.POLLIN)
    begun = time.process_time()
    while not sockets.is_gone(identity):
        poll.poll()
        sockets.turn()
        while frame := sockets.next_frame(identity):
            sockets.answer(identity, [(frame[0], pieces)])
    seconds = time.process_time() - begun
    os.waitpid(pid, 0)
    return seconds


def _ask(address: tuple[str, int], mode: str, store: Path, count: int, size: int) -> None:
    peer = socket.create_connection(address)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if mode != "plain":
        context = ssl.create_default_context(cafile=str(store))
        context.maximum_version = ssl.TLSVersion[mode]
        peer = context.wrap_socket(peer, server_hostname="localhost")
    buffer = bytearray(MIB)
    for _ in range(count):
        peer.sendall(REQUEST)
        left = size
        while left > 0:
            left -= peer.recv_into(buffer)


if __name__ == "__main__":
    main()
