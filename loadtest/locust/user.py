"""What all users have in common: a thread for their client's blocking calls, and a way into locust's statistics.

Knows locust and gevent, and of the clients only which errors say how a call ended; not what users do.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from confluent_kafka import KafkaException
from gevent.threadpool import ThreadPool
from locust import User
from locust.env import Environment

from loadtest.locust.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")

REQUEST_SECONDS_MAX = 15.0
"""How long a client waits for one answer before it calls it a failure."""


class Measured:
    """What a measured block reports: how many bytes it has moved."""

    size = 0


class KafkaUser(User):
    """A user with one client, or several, of librdkafka.

    librdkafka has threads of its own in C, which gevent cannot patch: a call that waits would stop every user of the
    process. Polling without waiting would instead add its pause to each latency. So each user has one real thread for
    calls that wait, in which callbacks run too; what they saw goes into the statistics, which are not made for threads,
    back in the user's greenlet.
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        assert environment.parsed_options is not None
        self.options: Namespace = environment.parsed_options
        self._thread = ThreadPool(1)

    def blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait in this user's thread, after one that it has not finished."""

        # The client's errors come back as values: gevent prints the stack of what is raised in its threads.
        def caught() -> tuple[T] | KafkaException:
            try:
                return (call(*args, **kwargs),)
            except KafkaException as error:
                return error

        result: tuple[T] | KafkaException = self._thread.apply(caught)
        if isinstance(result, KafkaException):
            raise result
        return result[0]

    def client_config(self, **more: str | float) -> dict[str, str | int | float | bool]:
        """Return the configuration that every client has, and more."""
        return {
            "bootstrap.servers": self.host or "",
            "client.id": f"loadtest-{type(self).__name__}",
            "socket.timeout.ms": int(REQUEST_SECONDS_MAX * 1000),
            # A connection that is lost and made again is no failure; a call that fails for it is reported as one.
            "log_level": 0,
            **more,
        }

    def report(self, operation: Operation, seconds: float, size: int = 0, error: object = None) -> None:
        """Add an operation to the statistics; `error` says why it failed."""
        exception = None if error is None else error if isinstance(error, Exception) else RuntimeError(error)
        self.environment.events.request.fire(
            request_type=operation.type,
            name=operation.name,
            response_time=seconds * 1000,
            response_length=size,
            exception=exception,
            context=self.context(),
        )

    @contextmanager
    def measured(self, operation: Operation) -> Iterator[Measured]:
        """Time a block and report it, as a failure where the client raises; the user goes on."""
        measured = Measured()
        began = time.perf_counter()
        try:
            yield measured
        except KafkaException as error:
            self.report(operation, time.perf_counter() - began, error=error)
        else:
            self.report(operation, time.perf_counter() - began, measured.size)

    def on_stop(self) -> None:
        """End this user's thread, the last thing that a user does."""
        self._thread.kill()
