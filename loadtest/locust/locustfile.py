"""What locust loads: users, the shape, flags, topics before a run, judgement after it.

Run it by `make loadtest`, or by hand: `.venv/bin/locust -f loadtest/locust/locustfile.py --host 127.0.0.1:9092`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from confluent_kafka import KafkaException
from locust import LoadTestShape, User, events
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import WorkerRunner
from locust.stats import StatsEntry

from loadtest.locust import arguments, shapes, thresholds, topics
from loadtest.locust.admins import AdminUser
from loadtest.locust.consumers import ConsumerUser, ReaderUser
from loadtest.locust.groups import GroupUser
from loadtest.locust.producers import ProducerUser
from loadtest.locust.thresholds import Limits, Measured, Verdict

# In the order in which users of a small run are made: one producer first.
USERS: dict[str, type[User]] = {
    "producer": ProducerUser,
    "consumer": ConsumerUser,
    "reader": ReaderUser,
    "group": GroupUser,
    "admin": AdminUser,
}


class Shape(LoadTestShape):
    """The shape that --shape names, of --users, in --run-time."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Return how many users there are now, and how many of them come or go in a second."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        assert options is not None
        seconds = options.run_time or arguments.RUN_SECONDS
        elapsed: float = self.get_run_time()  # type: ignore[no-untyped-call]  # locust's
        users = shapes.users_at(options.shape, elapsed, seconds, options.num_users or 1)
        return None if users is None else (users, options.spawn_rate or 1)


class Judge:
    """Holds the statistics against the thresholds: fixes the exit code, and prints the table behind locust's own."""

    def __init__(self, limits: Limits, environment: Environment) -> None:
        self._limits = limits
        self._environment = environment
        self._verdicts: list[Verdict] = []

    def judge(self, **_: object) -> None:
        """Decide on the exit code: 1 where a limit is broken."""
        stats = self._environment.stats
        found = {f"{entry.method}: {entry.name}": _measured(entry) for entry in stats.entries.values()}
        self._verdicts = thresholds.judge(self._limits, _measured(stats.total), found)
        self._environment.process_exit_code = 0 if all(each.kept for each in self._verdicts) else 1

    def print(self, **_: object) -> None:
        """Print the table."""
        print(f"Thresholds\n{thresholds.table(self._verdicts)}", flush=True)


def _measured(entry: StatsEntry) -> Measured:
    return Measured(
        entry.num_requests, entry.num_failures, entry.get_response_time_percentile(0.99), entry.total_rps
    )


def _prepare(environment: Environment, **_: object) -> None:
    """Take the mix and the thresholds from the flags; ends locust with one line where they are wrong."""
    options = environment.parsed_options
    assert options is not None
    try:
        for name, share in arguments.mix(options.mix, list(USERS)).items():
            USERS[name].weight = share
            if share == 0 and USERS[name] in environment.user_classes:
                environment.user_classes.remove(USERS[name])
        judge = _judge(options, environment)
    except ValueError as error:
        sys.exit(f"loadtest: {error}")
    if judge is not None and not isinstance(environment.runner, WorkerRunner):
        environment.events.quitting.add_listener(judge.judge)
        environment.events.quit.add_listener(judge.print)


def _judge(options: Namespace, environment: Environment) -> Judge | None:
    if not options.thresholds:
        return None
    return Judge(thresholds.load(Path(options.thresholds), options.shape), environment)


def _make_topics(environment: Environment, **_: object) -> None:
    options = environment.parsed_options
    if isinstance(environment.runner, WorkerRunner) or options is None or environment.host is None:
        return
    try:
        topics.create(environment.host, topics.planned(options), options.partitions)
    except KafkaException as error:
        # Thresholds that nothing was measured for are broken ones; without any, the exit code says it.
        print(f"loadtest: no topics at {environment.host}: {error.args[0]}", file=sys.stderr)
        environment.process_exit_code = 1
        raise StopTest from error


def _delete_topics(environment: Environment, **_: object) -> None:
    options = environment.parsed_options
    if isinstance(environment.runner, WorkerRunner) or options is None or environment.host is None:
        return
    if not options.keep_topics:
        topics.delete_everything(environment.host, options.prefix)


events.init_command_line_parser.add_listener(arguments.add)
events.init.add_listener(_prepare)
events.test_start.add_listener(_make_topics)
events.test_stop.add_listener(_delete_topics)
