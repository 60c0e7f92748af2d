"""Transactions in the log of a partition: what goes to Redis together, verification and its order, and markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError, TransactionUnverifiedError
from korvet.log import verification
from korvet.log.append import AppendResult, PendingAppends
from korvet.log.markers import Marker, MarkerWriter
from korvet.log.replication import Replicas
from korvet.log.types import Appended
from korvet.log.verification import Verify
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.observer import Observer
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition, PartitionRef, TopicRef
from tests.support.batches import batch
from tests.support.commands import commands_of
from tests.support.domain import Domain, domain
from tests.support.log_bench import Bench, code_of
from tests.support.partition_state import producers_of
from tests.support.proxy import Proxy

ORDERS = "orders"
NUMBER = 1_700_000_000_000
REFUSAL = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the one before is not complete")
FORMATS = pytest.mark.parametrize("storage_format", ["record", "batch"])


def appended(outcome: object) -> Appended:
    assert isinstance(outcome, Appended), outcome
    return outcome


def opening(bench: Bench, producer: int, partition: Partition | None = None) -> Any:
    return bench.made(
        b"%d" % producer,
        producer=producer,
        epoch=0,
        sequence=0,
        transaction=f"t{NUMBER}",
        partition=partition,
    )


def writer(bench: Bench) -> MarkerWriter:
    keys = Keys("korvet")
    replicas = Replicas(lambda: bench.redis, bench.redis, keys, replicas=0, timeout_ms=5000)
    return MarkerWriter(bench.logs, replicas)


def marker(
    bench: Bench,
    producer: int = 7,
    *,
    epoch: int = 0,
    number: int = NUMBER,
    index: int = 0,
    commit: bool = False,
) -> Marker:
    return Marker(bench.at(index), producer, epoch, number, commit)


def opened(bench: Bench, index: int = 0) -> dict[str, int]:
    """Return the first offset of each open transaction, as the row of its producer has it."""
    rows = producers_of(bench.raw, bench.at(index).state)
    names = bench.raw.zrange(bench.at(index).open_transactions, 0, -1)
    return {name.decode(): rows[int(name)].first_offset for name in names}


def aborted(bench: Bench, index: int = 0) -> list[str]:
    """Return producer and first offset of each aborted transaction."""
    rows = bench.raw.zrange(bench.at(index).aborted, 0, -1)
    return [row.decode().rpartition(":")[0] for row in rows]


def test_appends_of_several_producers_are_one_call_whether_or_not_in_transactions(bench: Bench) -> None:
    bench.append(b"first")
    made = [bench.made(b"plain"), opening(bench, 7), opening(bench, 8), bench.made(b"plain too")]
    with commands_of(bench.raw) as ran:
        begun = [bench.logs.begin_append([each]) for each in made]
        bases = [appended(each.result()[0]).base_offset for each in begun]
    assert ran["evalsha"] == 1
    assert bases == list(range(bases[0], bases[0] + 4))
    assert opened(bench) == {"7": bases[1], "8": bases[2]}


def test_what_is_not_verified_is_neither_written_nor_an_error_of_the_script(
    bench: Bench, redis_url: str
) -> None:
    failed: list[str] = []

    class Failures(Observer):
        def script_failed(self, script: str, error: str) -> None:
            failed.append(f"{script} {error}")

    client = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000, observer=Failures())
    logs = type(bench.logs)(client, client, Keys("korvet"))
    made = bench.made(b"a", producer=7, epoch=0, sequence=0, transaction="t0")
    [unverified, plain] = logs.append([made, bench.made(b"b")])
    assert isinstance(unverified, TransactionUnverifiedError)
    appended(plain)
    assert failed == []
    client.close()


def test_a_missing_script_is_sent_again_with_its_keys(bench: Bench) -> None:
    bench.append(b"first")
    bench.raw.script_flush()
    base = appended(bench.logs.append([opening(bench, 7)])[0]).base_offset
    assert opened(bench) == {"7": base}
    bench.raw.script_flush()
    assert writer(bench).write([marker(bench)]) == [None]
    assert opened(bench) == {}


def test_markers_are_written_to_all_partitions_once(bench: Bench) -> None:
    for producer, index in ((7, 0), (7, 1), (8, 1)):
        appended(bench.logs.append([opening(bench, producer, bench.at(index))])[0])
    markers = [marker(bench, index=0), marker(bench, index=1, commit=True), marker(bench, 8, index=1)]
    for _ in range(2):
        assert writer(bench).write(markers) == [None] * 3
        assert [opened(bench, index) for index in (0, 1)] == [{}, {}]
        assert [bench.raw.xlen(bench.at(index).stream) for index in (0, 1)] == [2, 4]
    assert bench.raw.exists(bench.at(0).aborted) == 1
    [of_other] = aborted(bench, 1)
    assert of_other.startswith("8:")


def test_what_needs_no_marker_any_more_is_reported(bench: Bench) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    assert writer(bench).write([marker(bench, epoch=2)]) == [None]
    gone = Marker(bench.at(0, topic_id="another"), 7, 0, NUMBER, commit=True)
    fenced, deleted = writer(bench).write([marker(bench, epoch=1, number=NUMBER + 1), gone])
    assert code_of(fenced) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(deleted) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert writer(bench).write([]) == []


def test_a_marker_whose_reply_is_lost_is_written_again_and_counts_once(bench: Bench, network: Proxy) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    with domain(network.url) as far:
        appended(far.log.append([bench.made(b"x", partition=bench.at(1))])[0])
        network.cut_after_to_client = network.bytes_to_client
        assert MarkerWriter(far.log, far.replicas).write([marker(bench)]) == [None]
    assert network.connections == 2
    assert opened(bench) == {}
    assert bench.raw.xlen(bench.partition.stream) == 2


def test_markers_that_cannot_be_written_are_reported(bench: Bench) -> None:
    appended(bench.logs.append([opening(bench, 7)])[0])
    bench.raw.config_set("min-replicas-to-write", 1)
    try:
        [failed] = writer(bench).write([marker(bench)])
    finally:
        bench.raw.config_set("min-replicas-to-write", 0)
    assert isinstance(failed, StorageUnavailableError)
    assert opened(bench).keys() == {"7"}


class Coordinator:
    """Verifies, or refuses, and counts."""

    def __init__(self, *answers: KafkaError | int) -> None:
        self.asked: list[tuple[int, int, list[tuple[str, int]]]] = []
        self._answers = list(answers)

    def __call__(self, producer_id: int, epoch: int, partitions: Sequence[Partition]) -> int:
        """Return the next answer, the number after all of them."""
        self.asked.append((producer_id, epoch, [(each.topic, each.index) for each in partitions]))
        answer = self._answers.pop(0) if self._answers else NUMBER
        if isinstance(answer, KafkaError):
            raise answer
        return answer


def begin(view: Domain, verify: Verify, sequence: int, *partitions: int, epoch: int = 0) -> PendingAppends:
    """Begin a request with a record for each partition."""
    value = b"%d" % sequence
    data = batch(value, producer_id=5, epoch=epoch, sequence=sequence, transactional=True)
    deliveries = [PartitionRef(TopicRef(ORDERS), each, data) for each in partitions or (0,)]
    return view.appender.begin(deliveries, zstd_known=True, verify=verify)


def codes(results: Sequence[AppendResult]) -> list[ErrorCode]:
    return [each.code if isinstance(each, KafkaError) else ErrorCode.NONE for each in results]


@pytest.fixture
def create(here: Domain) -> Callable[[str], None]:
    """Give what makes a topic of two partitions."""

    def made(storage_format: str) -> None:
        here.topics.create(TopicSpec(name=ORDERS, partitions=2, configs={"storage.format": storage_format}))

    return made


@FORMATS
def test_all_that_opens_a_transaction_is_verified_at_once(
    here: Domain, create: Callable[[str], None], storage_format: str
) -> None:
    create(storage_format)
    verify = Coordinator()
    first = begin(here, verify, 0, 0, 1)
    assert codes(first.result()) == [ErrorCode.NONE] * 2
    assert verify.asked == [(5, 0, [(ORDERS, 0), (ORDERS, 1)])]
    assert not first.in_order
    second = begin(here, verify, 1, 0, 1)
    assert codes(second.result()) == [ErrorCode.NONE] * 2
    assert second.in_order
    assert len(verify.asked) == 1


@FORMATS
def test_what_was_sent_before_the_first_was_verified_comes_after_it(
    here: Domain, create: Callable[[str], None], raw_redis: redis.Redis, storage_format: str
) -> None:
    create(storage_format)
    verify = Coordinator()
    begun = [begin(here, verify, sequence) for sequence in range(5)]
    assert all(each.in_order for each in begun)
    offsets = [appended(each.result()[0]).base_offset for each in begun]
    assert offsets == sorted(set(offsets))
    assert not any(each.in_order for each in begun)
    assert raw_redis.xlen("korvet:orders:0") == 5


@FORMATS
def test_what_follows_a_refusal_is_refused_until_that_comes_again(
    here: Domain, create: Callable[[str], None], raw_redis: redis.Redis, storage_format: str
) -> None:
    create(storage_format)
    verify = Coordinator(REFUSAL)
    refused = [ErrorCode.CONCURRENT_TRANSACTIONS]
    begun = [begin(here, verify, sequence) for sequence in range(3)]
    # The coordinator would verify all but the first.
    assert [codes(each.result()) for each in begun] == [refused] * 3
    assert codes(begin(here, verify, 2).result()) == refused
    assert len(verify.asked) == 1
    assert raw_redis.xlen("korvet:orders:0") == 0
    for sequence in range(3):
        assert codes(begin(here, verify, sequence).result()) == [ErrorCode.NONE]


def test_a_refusal_holds_for_its_partition_and_epoch_alone(
    here: Domain, create: Callable[[str], None]
) -> None:
    create("batch")
    verify = Coordinator(REFUSAL)
    assert codes(begin(here, verify, 0).result()) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert codes(begin(here, verify, 1, 0, 1).result()) == [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
    assert codes(begin(here, verify, 1, epoch=1).result()) == [ErrorCode.NONE]


def test_a_refusal_is_forgotten_when_nobody_waits_any_more(
    here: Domain, create: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    create("batch")
    verify = Coordinator(REFUSAL)
    assert codes(begin(here, verify, 0).result()) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    monkeypatch.setattr(verification, "REFUSED_SECONDS", 0.0)
    assert codes(begin(here, verify, 1).result()) == [ErrorCode.NONE]


def test_what_follows_a_batch_that_failed_after_it_was_verified_waits_too(
    here: Domain, create: Callable[[str], None], raw_redis: Any
) -> None:
    create("batch")

    def verify(producer_id: int, epoch: int, partitions: Sequence[Partition]) -> int:
        if not raw_redis.exists("failed"):
            raw_redis.set("failed", 1)
            raw_redis.config_set("maxmemory", 1)
        return NUMBER

    first, second = begin(here, verify, 0), begin(here, verify, 1)
    try:
        assert codes(first.result()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    finally:
        raw_redis.config_set("maxmemory", 0)
    assert codes(second.result()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    for sequence in range(2):
        assert codes(begin(here, verify, sequence).result()) == [ErrorCode.NONE]


def test_a_transaction_that_ends_before_its_batch_comes_stays_ended(
    here: Domain, create: Callable[[str], None], raw_redis: redis.Redis
) -> None:
    create("batch")
    markers = MarkerWriter(here.log, here.replicas)

    def verify(producer_id: int, epoch: int, partitions: Sequence[Partition]) -> int:
        [ended] = markers.write([Marker(partitions[0], producer_id, epoch, NUMBER, commit=False)])
        assert ended is None
        return NUMBER

    assert codes(begin(here, verify, 0).result()) == [ErrorCode.INVALID_TXN_STATE]
    assert not raw_redis.exists("{korvet:orders:0}:open")
    assert raw_redis.xlen("korvet:orders:0") == 1  # the marker


def test_a_topic_that_was_created_again_is_verified_as_it_is_now(
    here: Domain, there: Domain, create: Callable[[str], None]
) -> None:
    create("record")
    verify = Coordinator()
    assert codes(begin(here, verify, 0).result()) == [ErrorCode.NONE]
    there.topics.refresh()
    there.topics.delete([there.topics.known(TopicRef(ORDERS))])
    there.topics.create(TopicSpec(name=ORDERS, partitions=2))
    assert codes(begin(here, verify, 0).result()) == [ErrorCode.NONE]
    assert len(verify.asked) == 2


def test_a_topic_that_is_created_again_after_it_was_verified_is_verified_again(
    here: Domain, there: Domain, create: Callable[[str], None]
) -> None:
    create("record")
    asked: list[str] = []

    def verify(_producer_id: int, _epoch: int, partitions: Sequence[Partition]) -> int:
        asked.append(partitions[0].topic_id)
        if len(asked) == 1:
            there.topics.refresh()
            there.topics.delete([there.topics.known(TopicRef(ORDERS))])
            there.topics.create(TopicSpec(name=ORDERS, partitions=2))
        return NUMBER

    assert codes(begin(here, verify, 0).result()) == [ErrorCode.NONE]
    assert len(set(asked)) == 2
