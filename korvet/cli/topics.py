"""`korvet topics`: creates, copies, lists, describes, alters and deletes topics, and assigns them to brokers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.cluster import log_sizes
from korvet.admin.configs import Config
from korvet.admin.errors import (
    AdminError,
    ElectionNotNeededError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.topics import NewTopic, TopicDescription
from korvet.admin.types import ConfigSource, Resource, TopicPartition
from korvet.cli.options import (
    INT32_MAX,
    TOPIC,
    AdminGroup,
    option,
    parse_brokers,
    parse_settings,
    parse_topics,
    repeated,
    validate_option,
    without_errors,
    yes_option,
)
from korvet.cli.output import (
    ProgressLine,
    confirm,
    format_bytes,
    json_wanted,
    print_outcomes,
    printable,
    printed_json,
    report_failures,
)
from korvet.cli.tables import NONE, Column, cell, number, numbers, print_result, print_table, tabulate, texts
from korvet.cli.topic_state import state
from korvet.redis.keys import TAG_LENGTH, Keys

_COUNT = click.IntRange(1, INT32_MAX)
_MOVE = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d{1,10})=(?P<brokers>.*)", re.ASCII)
_LISTED = (
    Column("topic", "name"),
    Column("id", lambda topic: _text(topic.topic_id)),
    number("partitions"),
    Column("internal", title=None),
)
_PARTITION = (
    number("partition"),
    *texts("leader", "replicas", "in_sync"),
    *numbers("begin", "end"),
    number("size_bytes", title="Size", text=format_bytes),
    Column("stream"),
)
_names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
_COPIED = (Column("group"), *numbers("partition", "before", "after"))


@click.group(cls=AdminGroup)
def topics() -> None:
    """Create, copy, list, describe, alter and delete topics, and assign them to brokers; of any Kafka cluster."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@option("--partitions N", "Number of partitions; by default the cluster's.", _COUNT)
@option(
    "--replication-factor N",
    "Replicas of each partition; by default the cluster's.",
    click.IntRange(1, 2**15 - 1),
)
@option(
    "--replica-assignment 0:1,1:0",
    "The brokers of each partition, its preferred leader first.",
    name="assignment",
)
@repeated("-c, --config NAME=VALUE", "A setting", name="configs")
@option("--if-not-exists", "Do not fail if a topic exists.")
@validate_option
def create(  # noqa: PLR0913 - click gives each flag by its name
    admin: AdminClient,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignment: str | None,
    configs: tuple[str, ...],
    *,
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create topics."""
    brokers = None
    if assignment is not None:
        if partitions is not None or replication_factor is not None:
            raise click.UsageError("--replica-assignment excludes --partitions and --replication-factor")
        brokers = [parse_brokers("--replica-assignment", text) for text in assignment.split(",")]
    settings = parse_settings("--config", configs)
    new = [NewTopic(name, partitions, replication_factor, brokers, settings) for name in dict.fromkeys(names)]
    outcomes = admin.topics.create(new, validate_only=validate_only)
    rows: list[dict[str, object]] = []
    for name, outcome in outcomes.items():
        exists = if_not_exists and isinstance(outcome, TopicExistsError)
        error = outcome if isinstance(outcome, AdminError) and not exists else None
        row: dict[str, object] = {"topic": name, "created": False, "error": error}
        if not isinstance(outcome, AdminError):
            row |= {
                "created": not validate_only,
                "id": None if validate_only else _text(outcome.topic_id),
                "partitions": outcome.partitions,
                "replication_factor": outcome.replication_factor,
            }
        rows.append(row)
        if error is None and not json_wanted():
            done = "already exists:" if exists else "could be created" if validate_only else "created"
            click.echo(f"{done} {printable(name)}")
    printed_json(rows)
    report_failures("topic", {row["topic"]: row["error"] for row in rows})


def _text(topic_id: object) -> str | None:
    return None if topic_id is None else str(topic_id)


@topics.command()
@click.argument("source", metavar="SOURCE", type=TOPIC)
@click.argument("target", metavar="TARGET")
@repeated("-c, --config NAME=VALUE", "A setting in place of SOURCE's", name="configs")
def copy(admin: AdminClient, source: str, target: str, configs: tuple[str, ...]) -> None:
    """Copy the records of a topic, and the committed offsets of all groups in it, into a new topic.

    TARGET gets as many partitions as SOURCE, its layout, and SOURCE's own settings. Each record comes
    into the partition of the same number with its key, value, headers and timestamp; records of aborted transactions
    are left out, and a batch that cannot be read is skipped with a line on stderr. With
    message.timestamp.type=LogAppendTime TARGET's records have the time of the copy; to keep the times of SOURCE give
    --config message.timestamp.type=CreateTime. A committed offset becomes the offset of the same record, and the start
    of a share group as well: records acknowledged after it are delivered again. ACLs stay as they are.

    You need the rights Read and DescribeConfigs on SOURCE, Create, Describe, Write and Read on TARGET, and Read on each
    group. Groups that you may not describe are left out.

    Stop writers and readers of SOURCE before: a group with members is an error, and so is a SOURCE that has changed
    when the copy ends. After an error delete TARGET and begin again; if TARGET's settings refuse a record, change them
    by --config.
    """
    # The codecs of records take half of the time in which the other commands start.
    from korvet.admin.topic_copy import TopicCopy  # noqa: PLC0415 - as said above

    topic_copy = TopicCopy(admin, source, target, parse_settings("--config", configs))
    try:
        topic_copy.create()
    except AdminError as error:
        report_failures("topic", {target: error})
    skipped = 0
    try:
        with ProgressLine() as progress:
            for step in topic_copy.run():
                progress.add(step.records, step.size)
                skipped += len(step.skipped)
                for line in step.skipped:
                    click.echo(printable(f"skipped: {line}"), err=True)
    except BaseException:
        click.echo(f"{printable(target)} is incomplete: delete it, and run the command again", err=True)
        raise
    copied = {"source": source, "target": target, "records": progress.records, "skipped": skipped}
    if not printed_json(copied | {"offsets": topic_copy.offsets}):
        click.echo(printable(f"copied {progress.records} records of {source} to {target}"))
        tabulate(topic_copy.offsets, _COPIED, empty="no committed offsets")


@topics.command("list")
@option("--internal", "Include internal topics.")
def list_topics(admin: AdminClient, *, internal: bool) -> None:
    """List the topics."""
    listed = [topic for topic in admin.topics.list() if internal or not topic.internal]
    print_result(listed, _LISTED, empty="no topics", shown=("topic", "partitions", "id"))


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
@option("--all-topics", "Every topic that is not internal.")
def describe(admin: AdminClient, names: tuple[str, ...], *, all_topics: bool) -> None:
    """Show the partitions of topics with leaders, offsets and sizes, and the settings that are not the default.

    Begin and end are offsets. The size is the bytes of the log at its leader. "-" stands for what is not known. For
    topics with redis.placement=even the streams are shown whose names have slot tags.
    """
    if all_topics == bool(names):
        raise click.UsageError("name topics, or give --all-topics")
    if all_topics:
        names = tuple(topic.name for topic in admin.topics.list() if not topic.internal)
    outcomes = admin.topics.describe(dict.fromkeys(names))
    rows = _described(admin, [*without_errors(outcomes).values()])
    if not printed_json(rows):
        for row in rows:
            _print(row)
    report_failures("topic", outcomes)


def _described(admin: AdminClient, topics: Sequence[TopicDescription]) -> list[dict[str, Any]]:
    """Return the topics as JSON shows them, with offsets and sizes of their logs and their own settings."""
    contents = _contents(admin, topics)
    configs = admin.configs.describe([Resource.topic(topic.name) for topic in topics])
    streams = _tagged_streams(admin, topics, without_errors(configs))
    rows = []
    for topic in topics:
        partitions = []
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.partition)
            partitions.append(msgspec.structs.asdict(partition) | contents[key] | streams.get(key, {}))
        rows.append(
            {
                "topic": topic.name,
                "id": _text(topic.topic_id),
                "internal": topic.internal,
                "partitions": partitions,
                "configs": _own(configs[Resource.topic(topic.name)]),
            }
        )
    return rows


def _tagged_streams(
    admin: AdminClient, topics: Iterable[TopicDescription], configs: Mapping[Resource, Mapping[str, Config]]
) -> dict[TopicPartition, dict[str, str | None]]:
    """Return the streams of the partitions that have slot tags; None if the namespace is not known."""
    tags: dict[TopicPartition, str] = {}
    for topic in topics:
        config = configs.get(Resource.topic(topic.name), {}).get("redis.slot.tags")
        if config is None:
            continue
        for partition in topic.partitions:
            begin = partition.partition * TAG_LENGTH
            key = TopicPartition(topic.name, partition.partition)
            tags[key] = (config.value or "")[begin : begin + TAG_LENGTH]
    if not tags:
        return {}
    # All brokers of a cluster have one.
    broker = Resource.broker(admin.cluster.describe().brokers[0].broker_id)
    settings = admin.configs.describe([broker], names=["namespace"])[broker]
    namespace = None if isinstance(settings, AdminError) else settings["namespace"].value
    return {
        key: {"stream": Keys(namespace).stream(*key, tag) if namespace else None} for key, tag in tags.items()
    }


def _own(configs: Mapping[str, Config] | AdminError) -> dict[str, str | None] | None:
    """Return the settings that a topic itself has, None if they are not known."""
    if isinstance(configs, AdminError):
        return None
    return {name: config.value for name, config in configs.items() if config.source is ConfigSource.TOPIC}


def _contents(
    admin: AdminClient, topics: Iterable[TopicDescription]
) -> dict[TopicPartition, dict[str, int | None]]:
    """Return the offsets and the size of each log; None for what is not known."""
    leaders = {
        TopicPartition(topic.name, partition.partition): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    begins = without_errors(admin.offsets.at(dict.fromkeys(leaders, EARLIEST)))
    ends = without_errors(admin.offsets.at(dict.fromkeys(leaders, LATEST)))
    # Only the leaders are asked. A leader that is away fails its own partitions and no others.
    brokers = sorted({leader for leader in leaders.values() if leader is not None})
    log_dirs = without_errors(admin.partitions.log_dirs(brokers, leaders))
    sizes = {broker: log_sizes(dirs) for broker, dirs in log_dirs.items()}
    return {
        key: {
            "begin": begins[key].offset if key in begins else None,
            "end": ends[key].offset if key in ends else None,
            "size_bytes": None if leader is None else sizes.get(leader, {}).get(key),
        }
        for key, leader in leaders.items()
    }


def _print(topic: Mapping[str, Any]) -> None:
    count = len(topic["partitions"])
    head = f"{printable(topic['topic'])}: {count} partition{'s' if count != 1 else ''}"
    click.echo(head if topic["id"] is None else f"{head}, id {topic['id']}")
    if topic["configs"] is None:
        click.echo(f"  settings: {NONE}")
    for name, value in sorted((topic["configs"] or {}).items()):
        click.echo(printable(f"  {name}={cell(value)}"))
    has_streams = any("stream" in partition for partition in topic["partitions"])
    tabulate(topic["partitions"], _PARTITION if has_streams else _PARTITION[:-1])


@topics.command()
@_names_argument
@option("--partitions N", "New total partition count (can only grow).", _COUNT)
@repeated("-c, --config NAME=VALUE", "Set this", name="configs")
@repeated("-d, --delete-config NAME", "Reset this to the default", name="deleted")
@validate_option
def alter(
    admin: AdminClient,
    names: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    *,
    validate_only: bool,
) -> None:
    """Add partitions to topics, or change their settings.

    Existing records stay in their partitions. With more partitions, a key may map to another partition from then on.
    """
    changes: dict[str, str | None] = {**parse_settings("--config", configs), **dict.fromkeys(deleted)}
    if len(changes) < len(configs) + len(set(deleted)):
        raise click.UsageError("--config and --delete-config name the same setting")
    if partitions is None and not changes:
        raise click.UsageError("give --partitions, --config or --delete-config")
    outcomes: dict[str, AdminError | None] = dict.fromkeys(names)
    if changes:
        resources = {Resource.topic(name): changes for name in outcomes}
        altered = admin.configs.alter(resources, validate_only=validate_only)
        outcomes = {resource.name: error for resource, error in altered.items()}
    if partitions is not None:
        growing = dict.fromkeys((name for name, error in outcomes.items() if error is None), partitions)
        outcomes |= admin.topics.create_partitions(growing, validate_only=validate_only)
    print_outcomes("topic", "could be altered" if validate_only else "altered", outcomes)


@topics.command()
@_names_argument
@option("--if-exists", "Do not fail if a topic does not exist.")
@yes_option
def delete(admin: AdminClient, names: tuple[str, ...], *, if_exists: bool, yes: bool) -> None:
    """Delete topics with all their records, and the offsets that groups have committed for them."""
    wanted = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(wanted)} with all records?", "nothing is deleted", yes=yes)
    outcomes = {
        name: error
        for name, error in admin.topics.delete(wanted).items()
        if not (if_exists and isinstance(error, UnknownTopicOrPartitionError))
    }
    print_outcomes("topic", "deleted", outcomes)


@topics.command()
@click.argument("moves", metavar="[TOPIC:PARTITION=BROKER,...]...", nargs=-1)
@option(
    "-f, --file FILE",
    "Reassignments as JSON, in the format of Kafka's kafka-reassign-partitions.",
    click.Path(path_type=Path, dir_okay=False, exists=True),
)
@repeated("--cancel TOPIC[:0,1]", "Cancel an ongoing reassignment")
@option("--list", "Only list the ongoing reassignments.", name="listed")
def reassign(
    admin: AdminClient, moves: tuple[str, ...], file: Path | None, cancel: tuple[str, ...], *, listed: bool
) -> None:
    """Reassign partitions to brokers, the preferred leader first.

    On Korvet this takes effect at once. On Kafka it starts a reassignment, which --list shows until it is complete.
    """
    given = _reassignments(moves, file)
    cancelled = parse_topics("--cancel", cancel)
    if listed == bool(given or cancelled):
        raise click.UsageError("give moves, --cancel or --list" + (", not both" if listed else ""))
    if listed:
        _print_reassignments(admin)
        return
    targets = dict[TopicPartition, list[int] | None](given)
    targets |= dict.fromkeys(admin.partitions_of(cancelled))
    outcomes = admin.partitions.reassign(targets)
    _print_done(outcomes, {key: "cancelled" if targets[key] is None else "assigned" for key in outcomes})


@topics.command("elect-leaders")
@click.argument("names", metavar="[TOPIC[:0,1]]...", nargs=-1, type=TOPIC)
@option("--all-topics", "Every partition there is.")
@option("--unclean", "If no replica is in sync, elect one that is not: records are lost.")
@yes_option
def elect_leaders(
    admin: AdminClient, names: tuple[str, ...], *, all_topics: bool, unclean: bool, yes: bool
) -> None:
    """Elect the preferred leaders of partitions. A partition that has its preferred leader keeps it."""
    if all_topics == bool(names):
        raise click.UsageError("name topics, or give --all-topics")
    wanted = parse_topics("TOPIC", names)
    if unclean:
        confirm("Elect leaders that may have lost records?", "nothing is elected", yes=yes)
    partitions = None if all_topics else admin.partitions_of(wanted)
    outcomes = dict(admin.partitions.elect_leaders(partitions, unclean=unclean))
    done = {key: "elected" if error is None else "stays" for key, error in outcomes.items()}
    outcomes = {
        key: None if isinstance(error, ElectionNotNeededError) else error for key, error in outcomes.items()
    }
    _print_done(outcomes, done)


_Index = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Move(msgspec.Struct):
    topic: str
    partition: _Index
    replicas: list[_Index]


class _MoveFile(msgspec.Struct):
    """A file of Kafka's tool; it may have more fields."""

    version: Literal[1]
    partitions: list[_Move]


def _reassignments(texts: tuple[str, ...], file: Path | None) -> dict[TopicPartition, list[int]]:
    moves: list[_Move] = []
    if file is not None:
        try:
            moves = msgspec.json.decode(file.read_bytes(), type=_MoveFile).partitions
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            form = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}'
            raise click.UsageError(f"{printable(str(file))}: {error}; its form is {form}") from error
    for text in texts:
        match = _MOVE.fullmatch(text)
        if match is None or int(match["partition"]) > INT32_MAX:
            raise click.UsageError(f"a reassignment is orders:0=1,2, not {text!r}")
        moves.append(_Move(match["topic"], int(match["partition"]), parse_brokers(text, match["brokers"])))
    targets: dict[TopicPartition, list[int]] = {}
    for move in moves:
        key = TopicPartition(move.topic, move.partition)
        if key in targets:
            raise click.UsageError(f"{printable(str(key))} is given twice")
        targets[key] = move.replicas
    return targets


def _print_reassignments(admin: AdminClient) -> None:
    ongoing = sorted(admin.partitions.reassignments().items())
    if printed_json([key._asdict() | msgspec.structs.asdict(reassignment) for key, reassignment in ongoing]):
        return
    rows = [(str(key), *map(cell, msgspec.structs.astuple(reassignment))) for key, reassignment in ongoing]
    print_table(("Partition", "Replicas", "Adding", "Removing"), rows, empty="no ongoing reassignments")


def _print_done(
    outcomes: Mapping[TopicPartition, AdminError | None], done: Mapping[TopicPartition, str]
) -> None:
    if not printed_json(
        [
            key._asdict() | {"outcome": done[key] if error is None else None, "error": error}
            for key, error in outcomes.items()
        ]
    ):
        for key, error in outcomes.items():
            if error is None:
                click.echo(f"{printable(str(key))} {done[key]}")
    report_failures("partition", outcomes)


topics.add_command(state)
