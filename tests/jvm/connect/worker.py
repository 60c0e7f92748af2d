"""A worker of Kafka Connect in distributed mode, as a process, and its REST API."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.jvm.jars import JARS
from tests.support.processes import dying_with_tests, free_port, wait_until

HOST = "127.0.0.1"
START_SECONDS_MAX = 90.0
_ANSWER_SECONDS_MAX = 60.0
# Few threads for its garbage collector and compiler: brokers, workers and tests share the cores.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
_LOGS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")


class Worker:
    """A started worker. `name` is what Connect calls it: the HOST:PORT of its REST API."""

    def __init__(self, directory: Path, configs: Mapping[str, str]) -> None:
        port = free_port()
        self.name = f"{HOST}:{port}"
        self._port = port
        given = {**configs, "listeners": f"http://{self.name}", "rest.advertised.host.name": HOST}
        properties = directory / f"worker-{port}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        main = ("org.apache.kafka.connect.cli.ConnectDistributed", str(properties))
        self._log = directory / f"worker-{port}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                dying_with_tests(["java", *_JVM, *_LOGS, "-cp", f"{JARS}/*", *main]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        """Return what it wrote, from level WARN on."""
        return self._log.read_text()

    def wait_until_ready(self) -> None:
        """Wait until it has joined its group and answers."""
        wait_until(
            lambda: self.process.poll() is not None or self._answers(), "a worker is ready", START_SECONDS_MAX
        )
        assert self.process.poll() is None, f"the worker ended at its start:\n{self.log()}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the REST API, and return its answer; fails where it refuses."""
        status, answer = self.ask(method, path, body)
        assert status in {200, 201, 202, 204}, f"{method} {path}: {status} {answer}"
        return answer

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask the REST API; returns the HTTP status and the answer, None where that is not JSON."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_ANSWER_SECONDS_MAX)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(content) if content and is_json else None

    def _answers(self) -> bool:
        try:
            # An error until it has read what is stored and joined the group.
            return self.ask("GET", "/health")[0] == http.HTTPStatus.OK
        except (ConnectionError, TimeoutError):
            return False

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running() -> Iterator[list[Worker]]:
    """Give a list for the workers that a test starts; the remaining ones are killed at the end."""
    workers: list[Worker] = []
    try:
        yield workers
    except BaseException:
        # Where a test failed, pytest shows what they wrote.
        for worker in workers:
            print(worker.name, worker.log())  # noqa: T201 - as said above
        raise
    finally:
        for worker in workers:
            worker.kill()
