"""What locust loads: users, the shape, flags, topics before a run, judgement after it.

Run it by `make loadtest`, or by hand: `.venv/bin/locust -f loadtest/locust/locustfile.py --host 127.0.0.1:9092`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import gevent
from confluent_kafka import KafkaException
from gevent import GreenletExit
from locust import LoadTestShape, User, events
from locust.env import Environment
from locust.runners import LocalRunner, WorkerRunner
from locust.stats import PERCENTILES_TO_CHART, StatsEntry

from loadtest.locust import arguments, shapes, thresholds, topics
from loadtest.locust.operations import Operation
from loadtest.locust.thresholds import Limits, Measured, Verdict
from loadtest.locust.users import AdminUser, ConsumerUser, GroupUser, ProducerUser, ReaderUser

# In the order in which users of a small run are made: one producer first.
USERS: dict[str, type[User]] = {
    "producer": ProducerUser,
    "consumer": ConsumerUser,
    "reader": ReaderUser,
    "group": GroupUser,
    "admin": AdminUser,
}

PERCENTILES_TO_CHART.append(0.99)


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
    """Holds the statistics against the thresholds: fixes the exit code, and prints the table after locust's own."""

    def __init__(self, limits: Limits, environment: Environment) -> None:
        self._limits = limits
        self._environment = environment
        self._verdicts: list[Verdict] = []

    def judge(self, **_: object) -> None:
        """Decide on the exit code: 1 where a limit is broken, or something failed before."""
        stats = self._environment.stats
        result = {
            str(Operation(entry.name, entry.method)): _measured(entry) for entry in stats.entries.values()
        }
        runner = self._environment.runner
        errors = sum(exception["count"] for exception in runner.exceptions.values()) if runner else 0
        self._verdicts = thresholds.judge(self._limits, _measured(stats.total), result, errors)
        good = all(verdict.kept for verdict in self._verdicts) and not self._environment.process_exit_code
        self._environment.process_exit_code = 0 if good else 1

    def print(self, **_: object) -> None:
        """Print the table."""
        print(thresholds.summary(self._verdicts), flush=True)


def _measured(entry: StatsEntry) -> Measured:
    return Measured(
        entry.num_requests, entry.num_failures, entry.get_response_time_percentile(0.99), entry.total_rps
    )


def _prepare(environment: Environment, **_: object) -> None:
    """Look at the mix and the thresholds; ends locust with one line where they are wrong."""
    options = environment.parsed_options
    assert options is not None
    try:
        users = [name for name, share in arguments.mix(options.mix, list(USERS)).items() if share]
        judge = _judge(options, users, environment)
    except ValueError as error:
        sys.exit(f"loadtest: {error}")
    if judge is not None and not isinstance(environment.runner, WorkerRunner):
        environment.events.quitting.add_listener(judge.judge)
        environment.events.quit.add_listener(judge.print)


def _judge(options: Namespace, users: list[str], environment: Environment) -> Judge | None:
    if not options.thresholds:
        return None
    limits = thresholds.load(Path(options.thresholds), options.shape)
    return Judge(limits.of(users, options.formats.split(",")), environment)


def _begin(environment: Environment, **_: object) -> None:
    options = environment.parsed_options
    if isinstance(environment.runner, WorkerRunner) or options is None:
        return
    assert environment.runner is not None
    try:
        _make_ready(environment, options)
    except (ValueError, KafkaException) as error:
        print(f"loadtest: the run cannot begin: {error}", file=sys.stderr)
        environment.process_exit_code = 1
        runner = environment.runner
        gevent.spawn(runner.quit if options.headless else runner.stop)
        # Ends the greenlet that is about to make users, without a stack.
        raise GreenletExit from None


def _make_ready(environment: Environment, options: Namespace) -> None:
    """Take the shares of users, which the form of the page may have changed, and make the topics.

    Raises ValueError or KafkaException.
    """
    if not environment.host:
        raise ValueError("no broker to load: --host HOST:PORT")
    arguments.check(options)
    shares = arguments.mix(options.mix, list(USERS))
    # Locust takes no share of 0.
    environment.user_classes[:] = [USERS[name] for name, share in shares.items() if share]
    for name, share in shares.items():
        USERS[name].weight = share or 1
    topics.create(environment.host, topics.planned(options), options.partitions)


def _end(environment: Environment, **_: object) -> None:
    options = environment.parsed_options
    assert options is not None
    # A master does not wait for its workers' users, and a topic that is deleted under a producer comes back.
    if options.keep_topics or not environment.host or not isinstance(environment.runner, LocalRunner):
        return
    try:
        topics.delete_everything(environment.host, options.prefix)
    except KafkaException as error:
        print(f"loadtest: topics and groups cannot be deleted: {error}", file=sys.stderr)
        environment.process_exit_code = 1


events.init_command_line_parser.add_listener(arguments.add)
events.init.add_listener(_prepare)
events.test_start.add_listener(_begin)
events.test_stop.add_listener(_end)
