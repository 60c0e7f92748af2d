"""A store for tests: started, frozen, killed, and what a lake in it needs to know."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import dying_with_tests

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv" / "stores" / "bin" / "python"
SECRET = "hunter2-is-a-secret"
BUCKET = "lakes"


class Store:
    """A running one, empty but for a bucket."""

    def __init__(self, port: int = 0) -> None:
        """Take this port, or any that is free."""
        command = [str(PYTHON), str(HERE / "s3_server.py"), str(port)]
        self._process = subprocess.Popen(
            dying_with_tests(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self.port = int(self._stdout.readline())
        self._put(f"/{BUCKET}")

    def _put(self, path: str) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("PUT", path)
            assert connection.getresponse().status == http.HTTPStatus.OK

    @property
    def options(self) -> dict[str, str]:
        """What deltalake needs to know of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    @property
    def setting(self) -> str:
        """The same as the setting lake.storage.options."""
        return ",".join(f"{name}={value}" for name, value in self.options.items())

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nothing within the block; connections are taken, as by a machine that is overloaded."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def refuse(self, number: int) -> None:
        """Let it refuse the next requests by status 503; what it holds stays."""
        self._put(f"/refuse/{number}")

    def wait_for_refusals(self, number: int) -> None:
        """Wait until it has refused as many requests more."""
        for _ in range(number):
            assert self._stdout.readline() == "refused\n"

    def end(self) -> None:
        """End it with all it holds."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()


@contextlib.contextmanager
def store() -> Iterator[Store]:
    """Give a store, and end it after the block."""
    running = Store()
    try:
        yield running
    finally:
        running.end()
