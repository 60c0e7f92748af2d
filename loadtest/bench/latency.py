"""End-to-end latency at a fixed rate: from when a record was due to when a consumer has it."""

from __future__ import annotations

from loadtest.bench.load import Load
from loadtest.bench.peers import Mock, Peer
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Figure, Results

LATENCY = "End-to-end latency"
RATE = 5000
# A client's own pause is part of what its user sees; without it the broker's part is.
LINGERS = {"": "client's default linger.ms", "0": "linger.ms=0"}
_SIZE = 100
_WARM_SECONDS = 2


class Latency:
    """Latency of one peer at a time."""

    def __init__(self, load: Load, results: Results, seconds: int) -> None:
        self._load = load
        self._results = results
        self._seconds = seconds

    def run(self, linger_ms: str, peer: Peer | Redis, turn: int) -> None:
        """Measure with one setting of the producer."""
        if isinstance(peer, Redis | Mock):
            return
        topic = f"latency-{linger_ms or 'default'}-{turn}"
        peer.create(self._load, topic, 1)
        answer = self._load.do(
            "latency",
            **peer.address,
            topic=topic,
            rate=RATE,
            size=_SIZE,
            seconds=self._seconds,
            warm_seconds=_WARM_SECONDS,
            **{"linger.ms": linger_ms},
        )
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms")):
            figure = Figure(LATENCY, f"{name} at {RATE:,} records/s, acks=all, {LINGERS[linger_ms]}", "ms")
            self._results.add(figure, peer.name, turn, answer[key])
        peer.delete(self._load, topic)
