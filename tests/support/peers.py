"""What a broker's log says of one connection."""

from __future__ import annotations

from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.wire_client import WireClient


def lines_about(
    broker: Broker, peer: WireClient | tuple[str, int], words: str = "connection closed"
) -> list[str]:
    """Return all lines about a connection, once one has these words; a peer is known by its own address."""
    host, port = peer if isinstance(peer, tuple) else peer.socket.getsockname()
    lines: list[str] = []

    def logged() -> bool:
        lines[:] = [line for line in broker.log().splitlines() if f"peer={host}:{port} " in f"{line} "]
        return any(words in line for line in lines)

    wait_until(logged, f"{words!r} of {host}:{port}")
    return lines
