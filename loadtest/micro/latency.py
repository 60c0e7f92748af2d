"""Where the tail of the end-to-end latency lies: stages of Produce and Fetch, and what held Redis up.

Run as `python loadtest/micro/latency.py` from the repository, on a machine that has nothing else to do; Java as for
`make bench`. A producer sends 5,000 records of 100 bytes a second and a consumer has them, as in the bench. Printed are
the percentiles that the clients saw; for each stage in how many of 10,000 requests it took longer than a bound; and the
events of Redis' latency monitor.
"""

from __future__ import annotations

import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import redis
from prometheus_client.parser import text_string_to_metric_families

from loadtest.bench import toolchain
from loadtest.bench.latency import LINGERS, RATE
from loadtest.bench.load import Load
from loadtest.bench.peers import Korvet, KorvetBatch, KorvetRecord

SECONDS = 30
BOUNDS = ("0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025")
_STAGES = "korvet_request_stage_duration_seconds"
_WAIT = "wait"  # of a Fetch, for records: no part of what it takes to have them

Counts = Mapping[tuple[str, str, str], float]


def main() -> None:
    """Measure both formats, with both settings of the producer."""
    toolchain.prepare()
    with tempfile.TemporaryDirectory() as directory, Load(Path(directory)) as load:
        for peer in (KorvetBatch(Path(directory)), KorvetRecord(Path(directory))):
            peer.start()
            try:
                for linger_ms, name in LINGERS.items():
                    print(f"== {peer.name}, {name}")
                    _measure(load, peer, linger_ms)
            finally:
                peer.stop()


def _measure(load: Load, peer: Korvet, linger_ms: str) -> None:
    topic = f"latency-{linger_ms or 'default'}"
    options = {"rate": RATE, "size": 100, "warm_seconds": 3, "linger.ms": linger_ms}
    peer.create(load, topic, 1)
    with redis.Redis(unix_socket_path=str(peer.directory / "data" / "server.sock")) as server:
        server.config_set("latency-monitor-threshold", 1)
        server.latency_reset()
        before = _counts(peer)
        answer = load.do("latency", **peer.address, topic=topic, seconds=SECONDS, **options)
        after = _counts(peer)
        events = server.execute_command("LATENCY", "LATEST")
    print("   ".join(f"{name} {answer[key]:.2f} ms" for name, key in _PERCENTILES.items()))
    print(
        f"{'of 10,000 requests, longer than':32}" + "".join(f"{float(each) * 1000:>8g} ms" for each in BOUNDS)
    )
    for api, stage in sorted({key[:2] for key in after}):
        found = {
            bound: after[api, stage, bound] - before.get((api, stage, bound), 0)
            for bound in (*BOUNDS, "+Inf")
        }
        if found["+Inf"] and (api, stage) != ("Fetch", _WAIT):
            longer = [10_000 * (1 - found[bound] / found["+Inf"]) for bound in BOUNDS]
            print(f"{api + ', ' + stage:32}" + "".join(f"{each:>11.1f}" for each in longer))
    for name, _, _, longest_ms, *_ in events:
        print(f"Redis, {name.decode()}: {longest_ms} ms at most")
    peer.delete(load, topic)


_PERCENTILES = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms"}


def _counts(peer: Korvet) -> Counts:
    """Return how many requests took up to a bound, by API, stage and bound."""
    with urllib.request.urlopen(f"http://127.0.0.1:{peer.ops_port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
        return {
            (sample.labels["api"], sample.labels["stage"], sample.labels["le"]): sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"{_STAGES}_bucket"
        }


if __name__ == "__main__":
    main()
