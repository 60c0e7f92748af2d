"""What one worker reads of the lake for its consumers, and what it holds for them: a real process reads the lake."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import gevent
import pytest
from prometheus_client import REGISTRY

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.log.remote import client as remote_client
from korvet.log.remote import tier as remote_tier
from korvet.log.remote.client import RemoteCall, RemoteClient, RemoteRequest
from korvet.log.remote.tier import TIMESTAMPS_AT_ONCE, RemoteTier, read_request, search_request
from korvet.log.store import LogStore
from korvet.log.types import RemoteRange
from korvet.protocol.records.compression import Codec
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.log.lake import TOPIC, archived_lake
from tests.support.batches import read
from tests.support.lake_service import LakeService, lake_service
from tests.support.proxy import turn, until
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.slow

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
RECORDS = 1000
WHOLE = RemoteRange(0, RECORDS, RECORDS)
# Nothing here connects to Redis.
NO_REDIS = Redis("redis://127.0.0.1:1", timeout_ms=1, connect_timeout_ms=1)
PARTITION = LogStore(NO_REDIS, NO_REDIS, Keys("korvet")).partition(TOPIC, 0, TOPIC_ID, 10, "batch")


class _Counting(RemoteClient):
    """Counts the requests sent."""

    sent = 0

    def send(self, request: RemoteRequest) -> RemoteCall:
        self.sent += 1
        return super().send(request)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeService]:
    """Read a lake with one archived partition."""
    lake = archived_lake(tmp_path_factory.mktemp("lake"), TOPIC_ID, RECORDS)
    with lake_service(lake, lake) as running:
        yield running


@pytest.fixture
def store(service: LakeService) -> Iterator[_Counting]:
    made = _Counting(service.socket)
    service.process.send_signal(signal.SIGSTOP)
    yield made
    service.process.send_signal(signal.SIGCONT)
    made.close()


@pytest.fixture
def tier(store: RemoteClient) -> RemoteTier:
    """Give a lake that answers nothing before `answer`."""
    return RemoteTier(store, Settings(remote_fetch_max_wait_ms=20_000))


def request(offset: int = 0, bytes_max: int = 1000, codec: Codec = Codec.none) -> RemoteRequest:
    return read_request(PARTITION, WHOLE, offset, bytes_max, at_least_one=True, codec=codec)


def offsets(tier: RemoteTier, service: LakeService, wanted: RemoteRequest) -> list[int]:
    """Let the lake answer, and return the offsets of what is read."""
    service.process.send_signal(signal.SIGCONT)
    [answer] = tier.read([wanted], wait=True)
    assert answer is not None
    assert not isinstance(answer, KafkaError)
    return [record.offset for record in read(answer.data)]


def test_a_read_is_sent_once_however_often_its_consumer_comes(
    tier: RemoteTier, store: _Counting, service: LakeService
) -> None:
    for _ in range(3):
        assert tier.read([request()], wait=False) == [None]
    assert store.sent == 1
    assert offsets(tier, service, request())[0] == 0
    assert store.sent == 1


def errors_counted() -> float:
    return REGISTRY.get_sample_value("korvet_lake_read_errors_total") or 0.0


def test_a_lake_that_does_not_answer_is_an_error_after_a_while_and_is_asked_again(store: _Counting) -> None:
    clock, before = VirtualClock(), errors_counted()
    tier = RemoteTier(store, Settings(remote_fetch_max_wait_ms=0), clock=clock)
    for _ in range(4):
        assert tier.read([request()], wait=True) == [None]
        assert errors_counted() == before
        clock.advance(remote_tier.ANSWER_SECONDS_MAX / 4)
    [answer] = tier.read([request()], wait=True)
    assert isinstance(answer, KafkaError)
    assert answer.message == "the lake did not answer within 20 s"
    assert errors_counted() == before + 1
    assert tier.read([request()], wait=True) == [None]
    assert store.sent == 2


def test_readers_of_different_codecs_do_not_drop_the_reads_of_one_another(
    tier: RemoteTier, store: _Counting
) -> None:
    for _ in range(3):
        for codec in (Codec.none, Codec.zstd):
            assert tier.read([request(codec=codec)], wait=False) == [None]
    assert store.sent == 2


def test_what_is_held_for_consumers_is_bounded_in_bytes(
    tier: RemoteTier, store: _Counting, service: LakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tier, "HELD_BYTES_MAX", 2500)
    assert tier.read([request(0), request(100), request(200)], wait=False) == [None, None, None]
    assert store.sent == 2
    assert offsets(tier, service, request(0))[0] == 0
    assert offsets(tier, service, request(200))[0] == 200
    assert store.sent == 3


def test_a_read_beyond_the_limit_is_not_answered_at_once_for_its_consumer_would_come_again(
    tier: RemoteTier, store: _Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tier, "HELD_MAX", 0)
    asking = gevent.spawn(tier.read, [request()], wait=True)
    turn()
    assert not asking.ready()
    asking.kill()
    assert tier.read([request()], wait=False) == [None]
    assert store.sent == 0


def test_an_answer_that_no_consumer_comes_for_is_dropped(
    tier: RemoteTier, store: _Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tier, "HELD_SECONDS_MAX", 0.05)
    monkeypatch.setattr(remote_client, "UNDER_WAY_MAX", 1)
    assert tier.read([request()], wait=False) == [None]
    largest = RemoteRequest(0, "largest", TOPIC, TOPIC_ID, 0, 0, RECORDS)

    def has_room() -> bool:
        with contextlib.suppress(KafkaError):
            store.send(largest)
            return True
        return False

    until(has_room)


def test_no_answer_is_larger_than_the_limit_whatever_a_fetch_allows(
    tier: RemoteTier, service: LakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tier, "READ_BYTES_MAX", 500)
    first = offsets(tier, service, request(bytes_max=2**31 - 1))
    assert 0 < len(first) < 50
    assert offsets(tier, service, request(first[-1] + 1, bytes_max=2**31 - 1))[0] == first[-1] + 1


def test_searches_by_time_of_many_partitions_have_one_time_out(store: _Counting, tier: RemoteTier) -> None:
    tier.use(Settings(remote_list_offsets_request_timeout_ms=50))
    answers = tier.timestamps([search_request(PARTITION, WHOLE, 1500)] * 100)
    assert [type(answer) for answer in answers] == [KafkaError] * 100
    assert store.sent == TIMESTAMPS_AT_ONCE


def test_searches_by_time_are_answered_however_many_they_are(tier: RemoteTier, service: LakeService) -> None:
    service.process.send_signal(signal.SIGCONT)
    requests = [search_request(PARTITION, WHOLE, 1000 + at) for at in range(300)]
    assert tier.timestamps(requests) == [(at, 1000 + at) for at in range(300)]
    newest = (RECORDS - 1, 1000 + RECORDS - 1)
    newest_and_none = [search_request(PARTITION, WHOLE, timestamp) for timestamp in (None, 5000)]
    assert tier.timestamps(newest_and_none) == [newest, None]
