"""Requests of transactions with the rights that they need, as in `rights`."""

from __future__ import annotations

from korvet.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from korvet.protocol.types import AclOperation
from tests.handlers.cases import (
    ALTER,
    CLUSTER,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Case,
    always,
)

JOINING = add_partitions_to_txn.AddPartitionsToTxnTopic(name="orders", partitions=[0])

TRANSACTION_CASES: dict[int, list[Case]] = {
    10: [
        Case(
            always(find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])),
            [(DESCRIBE, TRANSACTIONAL_ID)],
        ),
    ],
    22: [
        Case(
            always(init_producer_id.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1)),
            [(WRITE, TRANSACTIONAL_ID)],
        )
    ],
    24: [
        Case(
            always(
                add_partitions_to_txn.AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="tx", v3_and_below_topics=[JOINING]
                )
            ),
            [(WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)],
            version=3,
        ),
        Case(
            always(
                add_partitions_to_txn.AddPartitionsToTxnRequest(
                    transactions=[
                        add_partitions_to_txn.AddPartitionsToTxnTransaction(
                            transactional_id="tx", producer_id=1, producer_epoch=0, topics=[JOINING]
                        )
                    ]
                )
            ),
            [(AclOperation.CLUSTER_ACTION, CLUSTER)],
        ),
    ],
    25: [
        Case(
            always(
                add_offsets_to_txn.AddOffsetsToTxnRequest(
                    transactional_id="tx", producer_id=1, producer_epoch=0, group_id="billing"
                )
            ),
            [(WRITE, TRANSACTIONAL_ID), (READ, GROUP)],
        )
    ],
    26: [
        Case(
            always(
                end_txn.EndTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, committed=True)
            ),
            [(WRITE, TRANSACTIONAL_ID)],
        )
    ],
    27: [
        Case(
            always(
                write_txn_markers.WriteTxnMarkersRequest(
                    markers=[
                        write_txn_markers.WritableTxnMarker(
                            producer_id=1,
                            producer_epoch=0,
                            transaction_result=False,
                            topics=[
                                write_txn_markers.WritableTxnMarkerTopic(name="orders", partition_indexes=[0])
                            ],
                            coordinator_epoch=0,
                        )
                    ]
                )
            ),
            [(operation, CLUSTER)],
        )
        for operation in (ALTER, AclOperation.CLUSTER_ACTION)
    ],
    28: [
        Case(
            always(
                txn_offset_commit.TxnOffsetCommitRequest(
                    transactional_id="tx",
                    group_id="billing",
                    producer_id=1,
                    producer_epoch=0,
                    topics=[
                        txn_offset_commit.TxnOffsetCommitRequestTopic(
                            name="orders",
                            partitions=[
                                txn_offset_commit.TxnOffsetCommitRequestPartition(
                                    partition_index=0, committed_offset=0, committed_metadata=""
                                )
                            ],
                        )
                    ],
                )
            ),
            [(WRITE, TRANSACTIONAL_ID), (READ, GROUP), (READ, TOPIC)],
        )
    ],
    65: [
        Case(
            always(describe_transactions.DescribeTransactionsRequest(transactional_ids=["tx"])),
            [(DESCRIBE, TRANSACTIONAL_ID)],
        )
    ],
    66: [
        Case(always(list_transactions.ListTransactionsRequest()), [(DESCRIBE, TRANSACTIONAL_ID)], refused=())
    ],
}
