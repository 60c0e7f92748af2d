"""The connection to Redis is cut at each byte of an append and of its reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support import processes, reading
from tests.support.broker import korvet_broker
from tests.support.proxy_process import Proxy
from tests.support.redis_servers import DurableServer


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["record", "batch"])
def test_the_connection_is_cut_at_every_byte_of_an_append_and_of_its_answer(
    tmp_path: Path, form: str
) -> None:
    with (
        # It writes to its file before it answers and syncs it each second: Korvet's own kind.
        DurableServer("--appendfsync", "everysec", listens=True) as server,
        Proxy(server.port) as proxy,
        korvet_broker(tmp_path, "--redis-url", f"redis://127.0.0.1:{proxy.port}", workers=1) as broker,
    ):
        reading.create_topic(broker.bootstrap, "cut", 1, {"storage.format": form})
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "reconnect.backoff.ms": 10,
            }
        )
        places: list[tuple[object, int | None]] = []
        at = cuts = 0
        while cuts == at:
            value = f"record-{at:06}"
            proxy.say(f"cut {value} {at}")
            producer.produce(
                "cut", value, on_delivery=lambda error, reported: places.append((error, reported.offset()))
            )
            assert producer.flush(processes.WAIT_SECONDS_MAX) == 0
            at += 1
            cuts = proxy.say("flow")
        # Command and answer are as long as that, and each of their bytes was the last one once.
        assert at > 200
        assert {error for error, _ in places} == {None}
        received = reading.read_all(broker.bootstrap, "cut", (0,), at)
    assert [record.value for record in received] == [b"record-%06d" % number for number in range(at)]
    assert [record.offset for record in received] == [offset for _, offset in places]
