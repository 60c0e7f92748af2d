"""`korvet transactions`: lists and describes transactions, and finds and aborts those that hang."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.cluster import Producer
from korvet.admin.errors import AdminError
from korvet.admin.transactions import TIMEOUT_MS_MAX, TransactionDescription
from korvet.admin.types import TopicPartition, settled
from korvet.cli.options import ClusterName, parse_topics, repeated_option, with_admin, yes_option
from korvet.cli.output import confirm, print_json, print_rows, printable, report_failures
from korvet.cli.run import CommandGroup

# Kafka's TransactionState.
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
_ID = ClusterName(
    "transactional id", lambda admin: [each.transactional_id for each in admin.transactions.list()]
)
_PRODUCER_ID = click.IntRange(0, 2**63 - 1)
_MS = click.IntRange(0, 2**63 - 1)
_NUMBERS = ("Partition", "Producer id", "Epoch", "Since (s)", "Timeout (s)", "From offset")


@click.group(cls=CommandGroup)
def transactions() -> None:
    """List and describe transactions, and find and abort those that hang; of any Kafka cluster."""


@transactions.command("list")
@repeated_option(
    "--state",
    "states",
    metavar="STATE",
    text="Only transactional ids in this state, as Ongoing",
    kind=click.Choice(_STATES, case_sensitive=False),
)
@repeated_option(
    "--producer-id", "producer_ids", metavar="N", text="Only of this producer id", kind=_PRODUCER_ID
)
@click.option(
    "--older-than", type=_MS, metavar="MS", help="Only transactions that have been open for longer."
)
@click.option(
    "--id-pattern", metavar="REGEX", help="Only transactional ids that match as a whole, in RE2's syntax."
)
@with_admin
def list_transactions(
    admin: AdminClient,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    older_than: int | None,
    id_pattern: str | None,
    *,
    as_json: bool,
) -> None:
    """List transactional ids with their states."""
    rows = [
        msgspec.structs.asdict(each)
        for each in admin.transactions.list(
            states=states, producer_ids=producer_ids, older_than_ms=older_than, id_pattern=id_pattern
        )
    ]
    if as_json:
        print_json(rows)
    else:
        columns = {"transactional_id": "Transactional id", "producer_id": "Producer id", "state": "State"}
        print_rows(columns, rows, _NUMBERS, empty="no such transactional ids")


@transactions.command()
@click.argument("transactional_ids", metavar="ID...", nargs=-1, type=_ID, required=True)
@with_admin
def describe(admin: AdminClient, transactional_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Show state, producer and partitions of transactional ids."""
    outcomes = admin.transactions.describe(transactional_ids)
    found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
    elif found:
        columns = {
            "transactional_id": "Transactional id",
            "state": "State",
            "producer_id": "Producer id",
            "producer_epoch": "Epoch",
            "timeout": "Timeout (s)",
            "since": "Since (s)",
            "partitions": "Partitions",
        }
        print_rows(columns, map(_row, found), _NUMBERS)
    report_failures("transactional id", outcomes)


def _row(found: TransactionDescription) -> Mapping[str, Any]:
    since_ms = None if found.start_ms is None else time.time() * 1000 - found.start_ms
    return msgspec.structs.asdict(found) | {
        "timeout": found.timeout_ms // 1000,
        "since": None if since_ms is None else max(0, int(since_ms)) // 1000,
        "partitions": ", ".join(map(str, found.partitions)) or None,
    }


@transactions.command()
@click.argument("topics", metavar="TOPIC[:0,1]...", nargs=-1, required=True)
@with_admin
def producers(admin: AdminClient, topics: tuple[str, ...], *, as_json: bool) -> None:
    """Show the idempotent producers of partitions, and where each one's open transaction begins."""
    partitions = admin.partitions_of(parse_topics("TOPIC", topics))
    outcomes = admin.partitions.producers(partitions)
    found = [
        _produced(at, each)
        for at, outcome in outcomes.items()
        if not isinstance(outcome, AdminError)
        for each in outcome
    ]
    _print_producers(found, as_json=as_json, empty="no producers")
    report_failures("partition", {str(at): outcome for at, outcome in outcomes.items()})


@transactions.command("find-hanging")
@repeated_option("--topic", "topics", metavar="T[:0,1]", text="Only this topic, or these partitions of it")
@click.option(
    "--older-than",
    type=_MS,
    default=TIMEOUT_MS_MAX,
    show_default=True,
    metavar="MS",
    help="Age from which an open transaction is suspect: transaction.max.timeout.ms of the brokers.",
)
@with_admin
def find_hanging(admin: AdminClient, topics: tuple[str, ...], older_than: int, *, as_json: bool) -> None:
    """Find transactions that are open in partitions and that no coordinator will end. They hold up readers."""
    named: Mapping[str, list[int]] = parse_topics("--topic", topics)
    if not named:
        named = {each.name: [] for each in admin.topics.list()}
    hanging = admin.transactions.find_hanging(admin.partitions_of(named), older_than_ms=older_than)
    found = [_produced(each.at, each.producer) for each in hanging]
    _print_producers(found, as_json=as_json, empty="no hanging transactions")


def _produced(at: TopicPartition, producer: Producer) -> dict[str, Any]:
    return at._asdict() | msgspec.structs.asdict(producer)


def _print_producers(found: list[dict[str, Any]], *, as_json: bool, empty: str) -> None:
    if as_json:
        print_json(found)
        return
    columns = {
        "topic": "Topic",
        "partition": "Partition",
        "producer_id": "Producer id",
        "epoch": "Epoch",
        "transaction_start": "From offset",
    }
    print_rows(columns, found, _NUMBERS, empty=empty)


@transactions.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option(
    "--producer-id", type=_PRODUCER_ID, required=True, metavar="N", help="Whose transaction to abort."
)
@yes_option
@with_admin
def abort(admin: AdminClient, partition: str, producer_id: int, *, yes: bool, as_json: bool) -> None:
    """Abort the transaction that a producer has open in a partition: one that `find-hanging` has found.

    Of a transaction whose coordinator works this loses what it wrote there, whatever it commits elsewhere.
    """
    [(topic, indexes)] = parse_topics("TOPIC:PARTITION", [partition]).items()
    if len(indexes) != 1:
        raise click.UsageError(f"name one partition, as {topic}:0")
    at = TopicPartition(topic, indexes[0])
    known = settled(admin.partitions.producers([at]))[at]
    found = next((each for each in known if each.producer_id == producer_id), None)
    if found is None or found.transaction_start is None:
        message = f"producer {producer_id} has no transaction open in {at}"
        raise click.ClickException(printable(message))
    question = (
        f"Abort the transaction of producer {producer_id} in {at}, from offset {found.transaction_start}?"
    )
    confirm(question, "nothing is aborted", yes=yes)
    admin.transactions.abort(at, found)
    if as_json:
        print_json(_produced(at, found) | {"error": None})
    else:
        click.echo(printable(f"aborted the transaction of producer {producer_id} in {at}"))
