"""`korvet topics reassign` and `korvet topics elect-leaders`: on which brokers partitions lie, and who leads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli import arguments as places
from korvet.cli.arguments import TOPIC
from korvet.cli.bootstrap import (
    broker_options,
    confirmed,
    connected,
    failures_told,
    print_table,
    shown,
    yes_option,
)

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.errors import AdminError
    from korvet.admin.types import TopicPartition

_MOVE = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d{1,10})=(?P<brokers>.*)", re.ASCII)
_PARTITION_MAX = 2**31 - 1


@click.command()
@click.argument("moves", metavar="[TOPIC:PARTITION=BROKER,...]...", nargs=-1)
@click.option(
    "--file",
    "-f",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Moves as JSON, in the form of Kafka's kafka-reassign-partitions.",
)
@click.option(
    "--cancel",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Call off a move that is under way; may be repeated.",
)
@click.option("--list", "listed", is_flag=True, help="Only show the moves that are under way.")
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
    """Move partitions to brokers, the preferred leader first.

    At a broker of Korvet that takes effect at once. At others it begins a move, which --list shows until it is done.
    """
    wanted = _moves(moves, file)
    cancelled = places.topics("--cancel", cancel)
    if listed == bool(wanted or cancelled):
        raise click.UsageError("give moves, --cancel or --list" + (", not both" if listed else ""))
    with connected(bootstrap_server, timeout) as admin:
        if listed:
            _print_moves(admin, as_json=as_json)
            return
        given = _places(wanted)
        outcomes = admin.partitions.reassign(given | dict.fromkeys(places.partitions(admin, cancelled)))
    done = {place: "cancelled" if given.get(place) is None else "assigned" for place in outcomes}
    _tell(outcomes, done, as_json=as_json)


@click.command("elect-leaders")
@click.argument("topics", metavar="[TOPIC[:0,1]]...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every partition there is.")
@click.option(
    "--unclean", is_flag=True, help="Where no replica is in sync take one that is not: it loses records."
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
    """Let the preferred brokers lead their partitions; those that have the right leader stay as they are."""
    if all_topics == bool(topics):
        raise click.UsageError("name topics, or give --all-topics")
    wished = places.topics("TOPIC", topics)
    if unclean:
        confirmed("Elect leaders that may have lost records?", "nothing is elected", yes=yes)
    from korvet.admin.errors import ElectionNotNeededError  # noqa: PLC0415 - other commands start without it

    with connected(bootstrap_server, timeout) as admin:
        partitions = None if all_topics else places.partitions(admin, wished)
        outcomes = dict(admin.partitions.elect_leaders(partitions, unclean=unclean))
    done = {}
    for place, error in outcomes.items():
        unneeded = isinstance(error, ElectionNotNeededError)
        done[place] = "stays" if unneeded else "elected"
        outcomes[place] = None if unneeded else error
    _tell(outcomes, done, as_json=as_json)


def _moves(texts: tuple[str, ...], file: Path | None) -> dict[tuple[str, int], list[int]]:
    found = {} if file is None else _from_file(file)
    for text in texts:
        match = _MOVE.fullmatch(text)
        if match is None:
            raise click.UsageError(f"a move is orders:0=1,2, not {text!r}")
        _add(found, match["topic"], int(match["partition"]), places.numbers(text, match["brokers"]))
    return found


def _from_file(file: Path) -> dict[tuple[str, int], list[int]]:
    """Read {"version": 1, "partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}."""
    found: dict[tuple[str, int], list[int]] = {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != 1:
            raise click.UsageError(f"{shown(str(file))}: version {content['version']}, not 1")
        for each in content["partitions"]:
            topic, partition, replicas = each["topic"], each["partition"], each["replicas"]
            whole = [partition, *replicas]
            if not isinstance(topic, str) or any(type(number) is not int or number < 0 for number in whole):
                raise click.UsageError(f"{shown(str(file))}: no move: {shown(json.dumps(each))}")
            _add(found, topic, partition, replicas)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{shown(str(file))}: {error}") from error
    except (KeyError, TypeError) as error:
        form = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}'
        raise click.UsageError(f"{shown(str(file))}: not of the form {form}") from error
    return found


def _add(found: dict[tuple[str, int], list[int]], topic: str, partition: int, brokers: list[int]) -> None:
    if partition > _PARTITION_MAX or any(broker > _PARTITION_MAX for broker in brokers):
        raise click.UsageError(f"{shown(topic)}:{partition} is to go where nothing can be")
    if (topic, partition) in found:
        raise click.UsageError(f"{shown(topic)}:{partition} is to be moved twice")
    found[topic, partition] = brokers


def _places(moves: Mapping[tuple[str, int], list[int]]) -> dict[TopicPartition, list[int] | None]:
    from korvet.admin.types import TopicPartition  # noqa: PLC0415 - other commands start without it

    return {TopicPartition(*place): brokers for place, brokers in moves.items()}


def _print_moves(admin: AdminClient, *, as_json: bool) -> None:
    moves = admin.partitions.reassignments()
    if as_json:
        rows = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "replicas": each.replicas,
                "adding": each.adding,
                "removing": each.removing,
            }
            for place, each in sorted(moves.items())
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    cells = [
        (str(place), *(",".join(map(str, some)) for some in (each.replicas, each.adding, each.removing)))
        for place, each in sorted(moves.items())
    ]
    print_table(("Partition", "Replicas", "Adding", "Removing"), cells)


def _tell(
    outcomes: Mapping[TopicPartition, AdminError | None],
    done: Mapping[TopicPartition, str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "outcome": done[place] if error is None else None,
                "error": None if error is None else str(error),
            }
            for place, error in outcomes.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for place, error in outcomes.items():
            if error is None:
                click.echo(f"{shown(str(place))} {done[place]}")
    failures_told("partition", {str(place): error for place, error in outcomes.items() if error is not None})
