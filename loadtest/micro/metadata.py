"""CPU per Metadata request of a whole broker with many topics, for all of them and for one.

Run as `python loadtest/micro/metadata.py [CHECKOUT ...]` from the repository. Starts a broker of one worker from each
checkout (this one where none is named), creates the topics, and sends the same requests to each in turn, round after
round. CPU times are those of /proc.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from loadtest.micro.requests import ROOT, Broker, broker, driven
from tests.support.wire_client import WireClient, request_frame

TOPICS = 10_000
TOPICS_AT_ONCE = 200
ROUNDS = 5
VERSION = 12


def main() -> None:
    """Measure on every checkout, alternating, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT]
    requests = {
        "all topics": (MetadataRequest(topics=None), 40),
        "one topic": (MetadataRequest(topics=[MetadataRequestTopic(name=_name(TOPICS // 2))]), 4000),
    }
    print(f"{'partitions':>10} {'asked for':11} {'checkout':24} {'worker us':>10} {'Redis us':>9}")
    for partitions in (1, 12):
        figures: dict[tuple[str, Path], list[tuple[float, float]]] = {}
        with ExitStack() as stack:
            started = {checkout: stack.enter_context(broker(checkout)) for checkout in checkouts}
            for each in started.values():
                _create(each, partitions)
            for _ in range(ROUNDS):
                for name, (request, count) in requests.items():
                    for checkout, each in started.items():
                        user, system, redis = driven(each, [request_frame(request, VERSION)], 1, count)
                        figures.setdefault((name, checkout), []).append((user + system, redis))
        for (name, checkout), rounds in figures.items():
            worker, redis = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{partitions:10} {name:11} {checkout.name:24} {worker:10.1f} {redis:9.1f}", flush=True)


def _name(number: int) -> str:
    return f"a-topic-of-usual-length-{number}"


def _create(started: Broker, partitions: int) -> None:
    with WireClient(started.address) as client:
        for first in range(0, TOPICS, TOPICS_AT_ONCE):
            topics = [
                CreatableTopic(name=_name(number), num_partitions=partitions, replication_factor=-1)
                for number in range(first, first + TOPICS_AT_ONCE)
            ]
            for result in client.call(CreateTopicsRequest(topics=topics), 7).topics:
                assert result.error_code == 0, result.error_message


if __name__ == "__main__":
    main()
