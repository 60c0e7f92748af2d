"""What waits for replicas of Redis, and what is answered while there are too few: by bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.records.batch import TRANSACTIONAL_BIT
from tests.handlers.test_consumer_group import Member
from tests.support import redis_servers
from tests.support.batches import batch, forged
from tests.support.broker import korvet_broker
from tests.support.processes import free_port, wait_until
from tests.support.share_consumer import Ack, ShareConsumer
from tests.support.topic_client import Client, produce_request
from tests.transactions.support import Process, make_topic

ALL, LEADER = -1, 1


def orders(partitions: int = 1) -> CreatableTopic:
    """Return the topic to create."""
    return CreatableTopic(name="orders", num_partitions=partitions, replication_factor=-1)


def committed(client: Client) -> int:
    """Commit an offset and return the error code."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    answer = client.call(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def joined(client: Client, epoch: int = 0) -> int:
    """Join a group of the consumer protocol, or send a plain heartbeat in an epoch; returns the error code."""
    first: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    request = ConsumerGroupHeartbeatRequest(
        group_id="consumers", member_id="m", member_epoch=epoch, **({} if epoch else first)
    )
    code: int = client.call(request, 1).error_code
    return code


def test_acks_all_waits_for_the_replica_and_says_so_when_it_is_gone(tmp_path: Path) -> None:
    port = str(free_port())
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        korvet_broker(
            tmp_path, "--redis-url", url, "--set", "replicas=1", "--set", "redis.timeout.ms=3000", workers=1
        ) as broker,
        Client(broker.address) as client,
        redis.Redis.from_url(url) as master,
    ):
        plain: Any = master
        alone = client.call(CreateTopicsRequest(topics=[orders()]), 7)
        assert [each.error_code for each in alone.topics] == [ErrorCode.REQUEST_TIMED_OUT]
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
        assert [each.error_code for each in client.call(wanted, 8).topics] == [ErrorCode.LEADER_NOT_AVAILABLE]
        assert plain.hlen("korvet:topics") == 0  # refused before anything was done
        tried = client.call(CreateTopicsRequest(topics=[orders()], validate_only=True), 7)
        assert [each.error_code for each in tried.topics] == [ErrorCode.NONE]  # changes nothing
        with (
            redis_servers.embedded_server("--replicaof", "127.0.0.1", port) as replica_url,
            redis.Redis.from_url(replica_url) as replica,
        ):
            held: Any = replica
            wait_until(lambda: held.info("replication")["master_link_status"] == "up", "a replica in step")

            def created() -> bool:
                [answer] = client.call(CreateTopicsRequest(topics=[orders()]), 7).topics
                return answer.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

            # First no replica is known to be in sync; then the master begins a history, as it has its first replica.
            wait_until(created, "the topic is confirmed")
            assert client.produce("orders", batch(b"held"), acks=ALL).error_code == ErrorCode.NONE
            assert committed(client) == ErrorCode.NONE
            assert joined(client) == ErrorCode.NONE
            assert held.xrange("korvet:orders:0")[0][1][b"value"] == b"held"

        def refused() -> bool:
            # How many are in sync may be of a second ago: then it is written first.
            code = client.produce("orders", batch(b"short"), acks=ALL).error_code
            assert code in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_ENOUGH_REPLICAS)
            return bool(code == ErrorCode.NOT_ENOUGH_REPLICAS)

        wait_until(refused, "nothing is written any more")
        assert committed(client) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert joined(client) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert joined(client, epoch=1) == ErrorCode.NONE  # or all members would be gone after a while
        assert client.produce("orders", batch(b"leader"), acks=LEADER).error_code == ErrorCode.NONE
        written = [entry[b"value"] for _, entry in plain.xrange("korvet:orders:0")]
        assert [value for value in written if value != b"short"] == [b"held", b"leader"]


def test_a_member_gets_no_partitions_of_which_no_replica_knows_and_stays_in_its_group(tmp_path: Path) -> None:
    port = str(free_port())
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        korvet_broker(
            tmp_path, "--redis-url", url, "--set", "replicas=1", "--set", "redis.timeout.ms=3000", workers=1
        ) as broker,
        Client(broker.address) as client,
    ):
        one, two = Member(client, "g", "orders"), Member(client, "g", "orders")
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):

            def created() -> bool:
                [answer] = client.call(CreateTopicsRequest(topics=[orders(4)]), 7).topics
                return answer.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

            wait_until(created, "the topic is confirmed")
            assert one.join().error_code == two.join().error_code == 0
            [kept] = one.send().assignment.topic_partitions
            assert one.send(topic_partitions=[kept]).member_epoch == 2
        assert two.send().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert one.send().error_code == ErrorCode.NONE, "a plain heartbeat waits for nobody"
        full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
        assert two.send(**full).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):
            wait_until(lambda: two.send(**full).error_code == 0, "the step is confirmed")
            [gained] = two.send(**full).assignment.topic_partitions
            assert (gained.partitions, kept.partitions) == ([2, 3], [0, 1])


def test_members_of_share_groups_get_and_acknowledge_nothing_of_which_no_replica_knows(
    tmp_path: Path,
) -> None:
    port = str(free_port())
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        korvet_broker(
            tmp_path, "--redis-url", url, "--set", "replicas=1", "--set", "redis.timeout.ms=3000", workers=1
        ) as broker,
        Client(broker.address) as client,
    ):
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):

            def created() -> bool:
                [answer] = client.call(CreateTopicsRequest(topics=[orders()]), 7).topics
                return answer.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

            wait_until(created, "the topic is confirmed")
            consumer = ShareConsumer(client, "g", "orders").on(client.described("orders").topic_id)
            assert consumer.poll() == []
            client.append("orders", b"1", b"2")
            [one] = consumer.poll(max_records=1, share_acquire_mode=1)
        [place] = consumer.wanted
        acks = {place: [Ack(one.offset, one.offset)]}
        assert consumer.acknowledged(acks) == {place: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        found = consumer.fetch(acks=acks)[place]
        assert found.acknowledge_error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (found.error_code, found.acquired_records) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", port):
            # It may be known already: how many are in sync may have been of a second ago.
            known = {ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE}
            wait_until(lambda: consumer.acknowledged(acks)[place] in known, "acknowledgements are taken")
            wait_until(lambda: not any(each.error_code for each in consumer.fetch().values()), "no error")


def test_transactions_wait_for_the_replica_too(tmp_path: Path) -> None:
    with redis_servers.embedded_server() as url:
        process = Process(Settings(redis_url=url))
        make_topic(process)
        process.close()
        with (
            korvet_broker(tmp_path, "--redis-url", url, "--set", "replicas=1", workers=1) as broker,
            Client(broker.address) as client,
        ):
            begun = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
            assert client.call(begun, 5).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            data = forged(batch(b"a", producer_id=1, epoch=0, sequence=0), attributes=TRANSACTIONAL_BIT)
            request = produce_request("orders", data, acks=LEADER)
            request.transactional_id = "tx"
            [topic] = client.call(request, 12).responses
            # Producers know it as an answer to Produce, and retry.
            assert topic.partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_topic_whose_replicas_are_not_in_sync_takes_nothing_with_acks_all(tmp_path: Path) -> None:
    port = str(free_port())
    with (
        redis_servers.embedded_server("--port", port, "--bind", "127.0.0.1") as url,
        korvet_broker(tmp_path, "--redis-url", url, "--set", "redis.timeout.ms=3000", workers=1) as broker,
        Client(broker.address) as client,
        redis.Redis.from_url(url) as master,
    ):
        plain: Any = master
        client.create("orders", min_insync_replicas="2")
        alone = client.produce("orders", batch(b"alone"), acks=ALL)
        assert alone.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert alone.error_message == "1 servers of Redis are in sync, and min.insync.replicas is 2"
        assert plain.exists("korvet:orders:0") == 0
        assert client.produce("orders", batch(b"leader"), acks=LEADER).error_code == ErrorCode.NONE
        with (
            redis_servers.embedded_server("--replicaof", "127.0.0.1", port) as replica_url,
            redis.Redis.from_url(replica_url) as replica,
        ):
            held: Any = replica

            def produced() -> bool:
                answer = client.produce("orders", batch(b"held"), acks=ALL)
                return bool(answer.error_code == ErrorCode.NONE)

            # Until the number of servers in sync, a second old, is of now, and the new history is known.
            wait_until(produced, "a replica is in sync")
            assert held.xrevrange("korvet:orders:0")[0][1][b"value"] == b"held"
