"""`korvet topics reassign` and `korvet topics elect-leaders`: which brokers hold partitions, and which lead them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, ElectionNotNeededError
from korvet.admin.types import TopicPartition
from korvet.cli.options import (
    TOPIC,
    broker_options,
    connected,
    parse_brokers,
    parse_topics,
    yes_option,
)
from korvet.cli.output import confirm, print_json, print_table, printable, report_failures

_MOVE = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d{1,10})=(?P<brokers>.*)", re.ASCII)
_NUMBER_MAX = 2**31 - 1


@click.command()
@click.argument("moves", metavar="[TOPIC:PARTITION=BROKER,...]...", nargs=-1)
@click.option(
    "--file",
    "-f",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Reassignments as JSON, in the format of Kafka's kafka-reassign-partitions.",
)
@click.option(
    "--cancel",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Cancel an ongoing reassignment; may be repeated.",
)
@click.option("--list", "listed", is_flag=True, help="Only list the ongoing reassignments.")
@broker_options
def reassign(
    bootstrap_server: str,
    timeout: float,
    moves: tuple[str, ...],
    file: Path | None,
    cancel: tuple[str, ...],
    *,
    listed: bool,
    as_json: bool,
) -> None:
    """Reassign partitions to brokers, the preferred leader first.

    On Korvet this takes effect at once. On Kafka it starts a reassignment, which --list shows until it is complete.
    """
    given = _reassignments(moves, file)
    cancelled = parse_topics("--cancel", cancel)
    if listed == bool(given or cancelled):
        raise click.UsageError("give moves, --cancel or --list" + (", not both" if listed else ""))
    with connected(bootstrap_server, timeout) as admin:
        if listed:
            _print_reassignments(admin, as_json=as_json)
            return
        targets = dict[TopicPartition, list[int] | None](given)
        targets |= dict.fromkeys(admin.partitions_of(cancelled))
        outcomes = admin.partitions.reassign(targets)
    done = {key: "cancelled" if targets[key] is None else "assigned" for key in outcomes}
    _print_outcomes(outcomes, done, as_json=as_json)


@click.command("elect-leaders")
@click.argument("topics", metavar="[TOPIC[:0,1]]...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every partition there is.")
@click.option(
    "--unclean", is_flag=True, help="Elect a replica that is not in sync if none is: records are lost."
)
@yes_option
@broker_options
def elect_leaders(
    bootstrap_server: str,
    timeout: float,
    topics: tuple[str, ...],
    *,
    all_topics: bool,
    unclean: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Elect the preferred leaders of partitions. A partition that has its preferred leader keeps it."""
    if all_topics == bool(topics):
        raise click.UsageError("name topics, or give --all-topics")
    wanted = parse_topics("TOPIC", topics)
    if unclean:
        confirm("Elect leaders that may have lost records?", "nothing is elected", yes=yes)
    with connected(bootstrap_server, timeout) as admin:
        partitions = None if all_topics else admin.partitions_of(wanted)
        outcomes = dict(admin.partitions.elect_leaders(partitions, unclean=unclean))
    done = {key: "elected" if error is None else "stays" for key, error in outcomes.items()}
    outcomes = {
        key: None if isinstance(error, ElectionNotNeededError) else error for key, error in outcomes.items()
    }
    _print_outcomes(outcomes, done, as_json=as_json)


def _reassignments(texts: tuple[str, ...], file: Path | None) -> dict[TopicPartition, list[int]]:
    found = {} if file is None else _from_file(file)
    for text in texts:
        match = _MOVE.fullmatch(text)
        if match is None:
            raise click.UsageError(f"a reassignment is orders:0=1,2, not {text!r}")
        _add(found, match["topic"], int(match["partition"]), parse_brokers(text, match["brokers"]))
    return found


def _from_file(file: Path) -> dict[TopicPartition, list[int]]:
    """Read {"version": 1, "partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}."""
    name = printable(str(file))
    found: dict[TopicPartition, list[int]] = {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != 1:
            raise click.UsageError(f"{name}: version {content['version']}, not 1")
        for each in content["partitions"]:
            topic, partition, replicas = each["topic"], each["partition"], each["replicas"]
            numbers = [partition, *replicas]
            if not isinstance(topic, str) or any(type(one) is not int or one < 0 for one in numbers):
                raise click.UsageError(f"{name}: not a reassignment: {printable(json.dumps(each))}")
            _add(found, topic, partition, replicas)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{name}: {error}") from error
    except (KeyError, TypeError) as error:
        form = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}'
        raise click.UsageError(f"{name}: not of the form {form}") from error
    return found


def _add(found: dict[TopicPartition, list[int]], topic: str, partition: int, brokers: list[int]) -> None:
    key = TopicPartition(topic, partition)
    if max([partition, *brokers]) > _NUMBER_MAX:
        raise click.UsageError(f"{printable(str(key))}: partitions and brokers are at most {_NUMBER_MAX}")
    if key in found:
        raise click.UsageError(f"{printable(str(key))} is given twice")
    found[key] = brokers


def _print_reassignments(admin: AdminClient, *, as_json: bool) -> None:
    ongoing = sorted(admin.partitions.reassignments().items())
    if as_json:
        print_json(
            [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": each.replicas,
                    "adding": each.adding,
                    "removing": each.removing,
                }
                for key, each in ongoing
            ]
        )
        return
    rows = [
        (str(key), *(",".join(map(str, some)) for some in (each.replicas, each.adding, each.removing)))
        for key, each in ongoing
    ]
    print_table(("Partition", "Replicas", "Adding", "Removing"), rows)


def _print_outcomes(
    outcomes: Mapping[TopicPartition, AdminError | None],
    done: Mapping[TopicPartition, str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "topic": key.topic,
                "partition": key.partition,
                "outcome": done[key] if error is None else None,
                "error": None if error is None else str(error),
            }
            for key, error in outcomes.items()
        ]
        print_json(rows)
    else:
        for key, error in outcomes.items():
            if error is None:
                click.echo(f"{printable(str(key))} {done[key]}")
    report_failures("partition", {str(key): error for key, error in outcomes.items()})
