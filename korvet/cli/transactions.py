"""`korvet transactions`: lists and describes transactions, and finds and aborts those that hang."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.cluster import Producer
from korvet.admin.transactions import TIMEOUT_MS_MAX
from korvet.admin.types import TopicPartition, settled
from korvet.cli.options import (
    AdminGroup,
    ClusterName,
    option,
    parse_topics,
    repeated,
    without_errors,
    yes_option,
)
from korvet.cli.output import confirm, json_wanted, printable, printed_json, report_failures
from korvet.cli.tables import Column, hidden, number, numbers, print_result, texts

# Kafka's TransactionState.
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
_ID = ClusterName(
    "transactional id", lambda admin: [listed.transactional_id for listed in admin.transactions.list()]
)
_PRODUCER_ID = _MS = click.IntRange(0, 2**63 - 1)
_LISTED = (Column("transactional_id"), number("producer_id"), Column("state"))
_DESCRIBED = (
    *texts("transactional_id", "state"),
    number("producer_id"),
    number("producer_epoch", title="Epoch"),
    number("timeout_ms", title="Timeout (s)", text=lambda ms: ms // 1000),
    number("start_ms", title="Since (s)", text=lambda ms: max(0, int(time.time() * 1000 - ms)) // 1000),
    Column("partitions", text=lambda partitions: ", ".join(map(str, partitions)) or None),
)
_PRODUCER = (
    Column("topic"),
    *numbers("partition", "producer_id", "epoch"),
    *hidden("last_sequence", "last_timestamp", "coordinator_epoch"),
    number("transaction_start", title="From offset"),
)


@click.group(cls=AdminGroup)
def transactions() -> None:
    """List and describe transactions, and find and abort those that hang; of any Kafka cluster."""


@transactions.command("list")
@repeated(
    "--state STATE",
    "Only transactional ids in this state, as Ongoing",
    click.Choice(_STATES, case_sensitive=False),
    name="states",
)
@repeated("--producer-id N", "Only of this producer id", _PRODUCER_ID, name="producer_ids")
@option("--older-than MS", "Only transactions that have been open for longer.", _MS, name="older_than_ms")
@option("--id-pattern REGEX", "Only transactional ids that match as a whole, in RE2's syntax.")
def list_transactions(admin: AdminClient, **filters: Any) -> None:  # noqa: ANN401 - those of `list`, by name
    """List transactional ids with their states."""
    print_result(admin.transactions.list(**filters), _LISTED, empty="no such transactional ids")


@transactions.command()
@click.argument("transactional_ids", metavar="ID...", nargs=-1, type=_ID, required=True)
def describe(admin: AdminClient, transactional_ids: tuple[str, ...]) -> None:
    """Show state, producer and partitions of transactional ids."""
    outcomes = admin.transactions.describe(transactional_ids)
    described = without_errors(outcomes).values()
    if described or json_wanted():
        print_result(described, _DESCRIBED)
    report_failures("transactional id", outcomes)


@transactions.command()
@click.argument("topics", metavar="TOPIC[:0,1]...", nargs=-1, required=True)
def producers(admin: AdminClient, topics: tuple[str, ...]) -> None:
    """Show the idempotent producers of partitions, with the first offset of each open transaction."""
    outcomes = admin.partitions.producers(admin.partitions_of(parse_topics("TOPIC", topics)))
    described = [
        _produced(partition, producer)
        for partition, known in without_errors(outcomes).items()
        for producer in known
    ]
    print_result(described, _PRODUCER, empty="no producers")
    report_failures("partition", outcomes)


@transactions.command("find-hanging")
@repeated("--topic T[:0,1]", "Only this topic, or these partitions of it", name="topics")
@option(
    "--older-than MS",
    "Age from which an open transaction is suspect: transaction.max.timeout.ms of the brokers.",
    _MS,
    default=TIMEOUT_MS_MAX,
)
def find_hanging(admin: AdminClient, topics: tuple[str, ...], older_than: int) -> None:
    """Find transactions that are open in partitions and that no coordinator will end. They hold up readers."""
    named: Mapping[str, list[int]] = parse_topics("--topic", topics)
    if not named:
        named = {topic.name: [] for topic in admin.topics.list()}
    hanging = admin.transactions.find_hanging(admin.partitions_of(named), older_than_ms=older_than)
    described = [_produced(transaction.at, transaction.producer) for transaction in hanging]
    print_result(described, _PRODUCER, empty="no hanging transactions")


def _produced(partition: TopicPartition, producer: Producer) -> dict[str, Any]:
    return partition._asdict() | msgspec.structs.asdict(producer)


@transactions.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@option("--producer-id N", "Producer id of the transaction.", _PRODUCER_ID, required=True)
@yes_option
def abort(admin: AdminClient, partition: str, producer_id: int, *, yes: bool) -> None:
    """Abort the transaction that a producer has open in a partition: one that `find-hanging` has found.

    Abort the transaction that a producer has open in a partition, after `find-hanging` has listed it.

    Do not abort a transaction that still has a coordinator: its records in this partition would be lost, even if the
    coordinator commits them in others.
    """
    [(topic, indexes)] = parse_topics("TOPIC:PARTITION", [partition]).items()
    if len(indexes) != 1:
        raise click.UsageError(f"name one partition, as {topic}:0")
    key = TopicPartition(topic, indexes[0])
    producers_of = settled(admin.partitions.producers([key]))[key]
    producer = {known.producer_id: known for known in producers_of}.get(producer_id)
    if producer is None or producer.transaction_start is None:
        raise click.ClickException(printable(f"producer {producer_id} has no transaction open in {key}"))
    transaction = f"the transaction of producer {producer_id} in {key}"
    question = f"Abort {transaction}, from offset {producer.transaction_start}?"
    confirm(question, "nothing is aborted", yes=yes)
    admin.transactions.abort(key, producer)
    if not printed_json(_produced(key, producer) | {"error": None}):
        click.echo(printable(f"aborted {transaction}"))
