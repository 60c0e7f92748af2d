"""`korvet topics`: creates, copies, lists, describes, alters and deletes topics, and assigns them to brokers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from korvet.admin.offsets import EARLIEST, LATEST, LogOffset
from korvet.admin.topics import CreatedTopic, NewTopic, TopicDescription, TopicListing
from korvet.admin.types import ConfigSource, Resource, TopicPartition
from korvet.cli.options import (
    INT32_MAX,
    TOPIC,
    parse_brokers,
    parse_settings,
    parse_topics,
    repeated_option,
    validate_option,
    with_admin,
    yes_option,
)
from korvet.cli.output import (
    NONE,
    ProgressLine,
    cell,
    confirm,
    error_or_none,
    format_bytes,
    print_json,
    print_outcomes,
    print_rows,
    print_table,
    printable,
    report_failures,
)
from korvet.cli.run import CommandGroup
from korvet.cli.topic_state import state
from korvet.redis.keys import TAG_LENGTH, Keys

_COUNT = click.IntRange(1, INT32_MAX)
_MOVE = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d{1,10})=(?P<brokers>.*)", re.ASCII)
_names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, copy, list, describe, alter and delete topics, and assign them to brokers; of any Kafka cluster."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", type=_COUNT, metavar="N", help="Number of partitions; by default the cluster's."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 2**15 - 1),
    metavar="N",
    help="Replicas of each partition; by default the cluster's.",
)
@click.option(
    "--replica-assignment",
    "assignment",
    metavar="0:1,1:0",
    help="The brokers of each partition, its preferred leader first.",
)
@repeated_option("--config", "-c", "configs", metavar="NAME=VALUE", text="A setting")
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists.")
@validate_option
@with_admin
def create(
    admin: AdminClient,
    names: tuple[str, ...],
    *,
    if_not_exists: bool,
    validate_only: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the flags that `_new_topics` takes
) -> None:
    """Create topics."""
    outcomes = admin.topics.create(_new_topics(names, **given), validate_only=validate_only)
    existing = {
        name for name, each in outcomes.items() if if_not_exists and isinstance(each, TopicExistsError)
    }
    if as_json:
        print_json(
            [
                {"topic": name, "created": False, "error": None}
                if name in existing
                else _created_as_object(name, each, validate_only=validate_only)
                for name, each in outcomes.items()
            ]
        )
    else:
        done = "could be created" if validate_only else "created"
        for name in outcomes:
            if name in existing or not isinstance(outcomes[name], AdminError):
                click.echo(f"{'already exists:' if name in existing else done} {printable(name)}")
    report_failures("topic", {name: each for name, each in outcomes.items() if name not in existing})


def _new_topics(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignment: str | None,
    configs: tuple[str, ...],
) -> list[NewTopic]:
    brokers = None
    if assignment is not None:
        if partitions is not None or replication_factor is not None:
            raise click.UsageError("--replica-assignment excludes --partitions and --replication-factor")
        brokers = [parse_brokers("--replica-assignment", each) for each in assignment.split(",")]
    settings = parse_settings("--config", configs)
    return [
        NewTopic(name, partitions, replication_factor, brokers, settings) for name in dict.fromkeys(names)
    ]


def _created_as_object(
    name: str, outcome: CreatedTopic | AdminError, *, validate_only: bool
) -> dict[str, Any]:
    if isinstance(outcome, AdminError):
        return {"topic": name, "created": False, "error": str(outcome)}
    return {
        "topic": name,
        "created": not validate_only,
        "error": None,
        "id": None if validate_only else _id(outcome),
        "partitions": outcome.partitions,
        "replication_factor": outcome.replication_factor,
    }


@topics.command()
@click.argument("source", metavar="SOURCE", type=TOPIC)
@click.argument("target", metavar="TARGET")
@repeated_option("--config", "-c", "configs", metavar="NAME=VALUE", text="A setting in place of SOURCE's")
@with_admin
def copy(admin: AdminClient, source: str, target: str, configs: tuple[str, ...], *, as_json: bool) -> None:
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
    progress = ProgressLine(shown=sys.stderr.isatty())
    skipped = 0

    def skip(line: str) -> None:
        nonlocal skipped
        skipped += 1
        click.echo(printable(f"skipped: {line}"), err=True)

    try:
        offsets = topic_copy.run(progress.add, skip)
    except BaseException:
        progress.end()
        click.echo(f"{printable(target)} is incomplete: delete it, and run the command again", err=True)
        raise
    progress.end()
    rows = list(map(msgspec.structs.asdict, offsets))
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "records": progress.records,
                "skipped": skipped,
                "offsets": rows,
            }
        )
    else:
        click.echo(printable(f"copied {progress.records} records of {source} to {target}"))
        columns = {name: name.capitalize() for name in ("group", "partition", "before", "after")}
        print_rows(columns, rows, ("Partition", "Before", "After"), empty="no committed offsets")


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@with_admin
def list_topics(admin: AdminClient, *, internal: bool, as_json: bool) -> None:
    """List the topics."""
    rows = [
        {"topic": each.name, "id": _id(each), "partitions": each.partitions, "internal": each.internal}
        for each in admin.topics.list()
        if internal or not each.internal
    ]
    if as_json:
        print_json(rows)
    else:
        columns = {"topic": "Topic", "partitions": "Partitions", "id": "Id"}
        print_rows(columns, rows, ("Partitions",), empty="no topics")


def _id(topic: TopicListing | TopicDescription | CreatedTopic) -> str | None:
    return None if topic.topic_id is None else str(topic.topic_id)


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every topic that is not internal.")
@with_admin
def describe(admin: AdminClient, names: tuple[str, ...], *, all_topics: bool, as_json: bool) -> None:
    """Show the partitions of topics with leaders, offsets and sizes, and the settings that are not the default.

    Begin and end are offsets. The size is the bytes of the log at its leader. "-" stands for what is not known. For
    topics with redis.placement=even the streams are shown whose names have slot tags.
    """
    if all_topics == bool(names):
        raise click.UsageError("name topics, or give --all-topics")
    if all_topics:
        names = tuple(each.name for each in admin.topics.list() if not each.internal)
    outcomes = {str(key): each for key, each in admin.topics.describe(dict.fromkeys(names)).items()}
    found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
    rows = _described(admin, found)
    if as_json:
        print_json(rows)
    else:
        for each in rows:
            _print(each)
    report_failures("topic", outcomes)


def _described(admin: AdminClient, topics: Sequence[TopicDescription]) -> list[dict[str, Any]]:
    """Return the topics as JSON shows them, with offsets and sizes of their logs and their own settings."""
    contents = _contents(admin, topics)
    configs = admin.configs.describe([Resource.topic(each.name) for each in topics])
    streams = _tagged_streams(admin, topics, configs)
    return [
        {
            "topic": topic.name,
            "id": _id(topic),
            "internal": topic.internal,
            "partitions": [
                msgspec.structs.asdict(each) | contents[key] | streams.get(key, {})
                for each in topic.partitions
                for key in (TopicPartition(topic.name, each.partition),)
            ],
            "configs": _own(configs[Resource.topic(topic.name)]),
        }
        for topic in topics
    ]


def _tagged_streams(
    admin: AdminClient,
    topics: Iterable[TopicDescription],
    configs: Mapping[Resource, Mapping[str, Config] | AdminError],
) -> dict[TopicPartition, dict[str, str | None]]:
    """Return the streams of the partitions that have slot tags; None if the namespace is not known."""
    found: dict[TopicPartition, str] = {}
    for topic in topics:
        described = configs[Resource.topic(topic.name)]
        if isinstance(described, AdminError) or "redis.slot.tags" not in described:
            continue
        tags = described["redis.slot.tags"].value or ""
        for each in topic.partitions:
            at = each.partition * TAG_LENGTH
            found[TopicPartition(topic.name, each.partition)] = tags[at : at + TAG_LENGTH]
    if not found:
        return {}
    # All brokers of a cluster have one.
    broker = Resource.broker(admin.cluster.describe().brokers[0].broker_id)
    settings = admin.configs.describe([broker], names=["namespace"])[broker]
    namespace = None if isinstance(settings, AdminError) else settings["namespace"].value
    return {
        key: {"stream": Keys(namespace).stream(*key, tag) if namespace else None}
        for key, tag in found.items()
    }


def _own(configs: Mapping[str, Config] | AdminError) -> dict[str, str | None] | None:
    """Return the settings that a topic itself has, None if they are not known."""
    if isinstance(configs, AdminError):
        return None
    return {each.name: each.value for each in configs.values() if each.source is ConfigSource.TOPIC}


def _contents(
    admin: AdminClient, topics: Iterable[TopicDescription]
) -> dict[TopicPartition, dict[str, int | None]]:
    """Return the offsets and the size of each log; None for what is not known."""
    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in topics
        for each in topic.partitions
    }
    begins = admin.offsets.at(dict.fromkeys(leaders, EARLIEST))
    ends = admin.offsets.at(dict.fromkeys(leaders, LATEST))
    # Only the leaders are asked. A leader that is away fails its own partitions and no others.
    brokers = sorted({leader for leader in leaders.values() if leader is not None})
    sizes: dict[int | None, dict[TopicPartition, int]] = {
        broker: {} if isinstance(dirs, AdminError) else log_sizes(dirs)
        for broker, dirs in admin.partitions.log_dirs(brokers, leaders).items()
    }

    def offset(outcome: LogOffset | AdminError) -> int | None:
        return None if isinstance(outcome, AdminError) else outcome.offset

    return {
        key: {
            "begin": offset(begins[key]),
            "end": offset(ends[key]),
            "size_bytes": sizes.get(leader, {}).get(key),
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
    titles = ["Partition", "Leader", "Replicas", "In sync", "Begin", "End", "Size"]
    names = ["partition", "leader", "replicas", "in_sync", "begin", "end", "size_bytes"]
    if any("stream" in each for each in topic["partitions"]):
        titles.append("Stream")
        names.append("stream")
    rows = [
        {**each, "size_bytes": None if each["size_bytes"] is None else format_bytes(each["size_bytes"])}
        for each in topic["partitions"]
    ]
    print_rows(dict(zip(names, titles, strict=True)), rows, numbers=("Partition", "Begin", "End", "Size"))


@topics.command()
@_names_argument
@click.option("--partitions", type=_COUNT, metavar="N", help="New total partition count (can only grow).")
@repeated_option("--config", "-c", "configs", metavar="NAME=VALUE", text="Set this")
@repeated_option("--delete-config", "-d", "deleted", metavar="NAME", text="Reset this to the default")
@validate_option
@with_admin
def alter(
    admin: AdminClient,
    names: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    *,
    validate_only: bool,
    as_json: bool,
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
        outcomes = {each.name: error for each, error in altered.items()}
    if partitions is not None:
        growing = dict.fromkeys((name for name, error in outcomes.items() if error is None), partitions)
        outcomes |= admin.topics.create_partitions(growing, validate_only=validate_only)
    print_outcomes("topic", "could be altered" if validate_only else "altered", outcomes, as_json=as_json)


@topics.command()
@_names_argument
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@yes_option
@with_admin
def delete(admin: AdminClient, names: tuple[str, ...], *, if_exists: bool, yes: bool, as_json: bool) -> None:
    """Delete topics with all their records, and the offsets that groups have committed for them."""
    wanted = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(wanted)} with all records?", "nothing is deleted", yes=yes)
    outcomes = {
        str(name): error
        for name, error in admin.topics.delete(wanted).items()
        if not (if_exists and isinstance(error, UnknownTopicOrPartitionError))
    }
    print_outcomes("topic", "deleted", outcomes, as_json=as_json)


@topics.command()
@click.argument("moves", metavar="[TOPIC:PARTITION=BROKER,...]...", nargs=-1)
@click.option(
    "--file",
    "-f",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Reassignments as JSON, in the format of Kafka's kafka-reassign-partitions.",
)
@repeated_option("--cancel", metavar="TOPIC[:0,1]", text="Cancel an ongoing reassignment")
@click.option("--list", "listed", is_flag=True, help="Only list the ongoing reassignments.")
@with_admin
def reassign(
    admin: AdminClient,
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
    if listed:
        _print_reassignments(admin, as_json=as_json)
        return
    targets = dict[TopicPartition, list[int] | None](given)
    targets |= dict.fromkeys(admin.partitions_of(cancelled))
    outcomes = admin.partitions.reassign(targets)
    done = {key: "cancelled" if targets[key] is None else "assigned" for key in outcomes}
    _print_outcomes(outcomes, done, as_json=as_json)


@topics.command("elect-leaders")
@click.argument("names", metavar="[TOPIC[:0,1]]...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every partition there is.")
@click.option(
    "--unclean", is_flag=True, help="Elect a replica that is not in sync if none is: records are lost."
)
@yes_option
@with_admin
def elect_leaders(
    admin: AdminClient,
    names: tuple[str, ...],
    *,
    all_topics: bool,
    unclean: bool,
    yes: bool,
    as_json: bool,
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
    if max([partition, *brokers]) > INT32_MAX:
        raise click.UsageError(f"{printable(str(key))}: partitions and brokers are at most {INT32_MAX}")
    if key in found:
        raise click.UsageError(f"{printable(str(key))} is given twice")
    found[key] = brokers


def _print_reassignments(admin: AdminClient, *, as_json: bool) -> None:
    ongoing = sorted(admin.partitions.reassignments().items())
    if as_json:
        print_json([key._asdict() | msgspec.structs.asdict(each) for key, each in ongoing])
        return
    rows = [(str(key), *map(cell, (each.replicas, each.adding, each.removing))) for key, each in ongoing]
    print_table(("Partition", "Replicas", "Adding", "Removing"), rows, empty="no ongoing reassignments")


def _print_outcomes(
    outcomes: Mapping[TopicPartition, AdminError | None],
    done: Mapping[TopicPartition, str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            [
                {
                    **key._asdict(),
                    "outcome": done[key] if error is None else None,
                    "error": error_or_none(error),
                }
                for key, error in outcomes.items()
            ]
        )
    else:
        for key, error in outcomes.items():
            if error is None:
                click.echo(f"{printable(str(key))} {done[key]}")
    report_failures("partition", {str(key): error for key, error in outcomes.items()})


topics.add_command(state)
