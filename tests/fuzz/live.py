"""Frames to one worker of a real broker, while a healthy client works and all that may go wrong is watched.

Each case is a connection of its own: requests whole, lying, damaged or cut short, several per write or byte by byte,
closed at random or left open. What they are follows from seed and number, and a little from what the broker answered
before. The client id of a case names it, so that lines of the broker's log do.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import redis
from aiokafka.record.memory_records import MemoryRecords

from korvet.errors import ErrorCode
from korvet.protocol.compile import encode
from korvet.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.fetch import FetchRequest
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.schema import Message
from korvet.protocol.types import SpecialTimestamp
from tests.fuzz import logins, watched_broker
from tests.fuzz.requests import REQUESTS, TOPICS, Learned, Requests, damaged, lying
from tests.support import batches, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client
from tests.support.wire_client import (
    RESPONSES,
    ClosedByBrokerError,
    WireClient,
    decode_response,
    frame,
    header,
)

HEALTHY = "healthy"
PARTITIONS = 4
OPEN_MAX = 24
"""Connections that are left open, the oldest of which is closed for the next."""

ANSWER_SECONDS_MAX = 0.2
"""How long a case waits for an answer that may be long in coming: of a Fetch or a JoinGroup."""

SEND_SECONDS_MAX = 1.0
SWEEP_CASES = 400
LARGE = (1_000, 20_000)
"""Elements of an array that holds the loop for long if nothing yields meanwhile."""
RSS_GROWTH_BYTES_MAX = 64 * 1024 * 1024
KEYS_MAX = 20_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 50,
    "connection.receive.timeout.ms": 2000,
    "record.decompressed.max.bytes": 8 * 1024 * 1024,
    **logins.SETTINGS,
}
LOGIN_RATE = 0.1
"""Of the cases: a hostile login follows."""
_PRODUCE_AND_FETCH = [item for item in REQUESTS if item[0] in {ProduceRequest, FetchRequest}]
_FAULTS = ("Traceback", "request failed", "unexpected error", watched_broker.SLOW)


class Sent(NamedTuple):
    """A request of a case: `whole` if it is one as it should be, and so is all before it."""

    cls: type[Message]
    version: int
    frame: bytes
    whole: bool


class Live:
    """A broker with TOPICS, and what it was seen to do; a context manager. `large`: some requests have LARGE arrays."""

    def __init__(self, directory: Path, seed: int, *, large: bool = False) -> None:
        self.seed = seed
        self._large_rate = 0.02 if large else 0.0
        self.findings: list[str] = []
        self.sent: set[tuple[str, int]] = set()
        """API and version of each whole request sent, and of the answered ones."""
        self.answered: set[tuple[str, int]] = set()
        self.frames = self.healthy = self.logins = 0
        self.healthy_seconds_max = 0.0
        self.rss_bytes: list[int] = []
        self.keys = 0
        self._directory = directory
        self._learned = Learned()
        self._open: deque[socket.socket] = deque()
        self._ending = threading.Event()
        self._running = contextlib.ExitStack()
        self._log_read = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(redis_servers.server())
            self.redis = stack.enter_context(redis.Redis.from_url(url))
            program = (sys.executable, "-m", "tests.fuzz.watched_broker", "serve")
            self.broker: Broker = stack.enter_context(
                korvet_broker(
                    self._directory,
                    *("--redis-url", url),
                    workers=1,
                    settings=SETTINGS,
                    listen=(),
                    program=program,
                )
            )
            [self.worker_pid] = self.broker.worker_pids()
            self._client = stack.enter_context(Client(self.broker.address, client_id="sweep"))
            self._learned.hidden.add(self._client.create(HEALTHY))
            self._log_read = len(self.broker.log())
            worker = threading.Thread(target=self._work, daemon=True)
            worker.start()
            stack.callback(worker.join)
            stack.callback(self._ending.set)
            self._running = stack.pop_all()
        self.sweep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for item in self._open:
            item.close()
        self._running.__exit__(kind, error, trace)

    def run_case(self, number: int) -> None:
        """Run one case."""
        rng = Random(f"live {self.seed} {number}")
        case = list(self._requests(rng, number))
        data = b"".join(item.frame for item in case)
        connection = socket.create_connection(self.broker.address, 30)
        connection.settimeout(SEND_SECONDS_MAX)
        # A worker reads no further while a request waits, as a JoinGroup does.
        with contextlib.suppress(ConnectionError, TimeoutError):
            for piece in _pieces(rng, data):
                connection.sendall(piece)
        self.frames += len(case)
        self.sent |= {(item.cls.__name__, item.version) for item in case if item.whole}
        ending = rng.random()
        if ending < 0.1:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return
        if ending < 0.3:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        if ending < 0.9:
            self._receive(connection, number, case)
        self._open.append(connection)
        if len(self._open) > OPEN_MAX or rng.random() < 0.7:
            self._open.popleft().close()
        self._log_in(Random(f"login {self.seed} {number}"))

    def _log_in(self, rng: Random) -> None:
        """Now and then be a client that may be nobody, at the listener with SASL, and read what it is answered."""
        if rng.random() > LOGIN_RATE:
            return
        self.logins += 1
        with (
            socket.create_connection(self.broker.at("SASL_PLAINTEXT"), 30) as connection,
            contextlib.suppress(OSError, ClosedByBrokerError),
        ):
            connection.settimeout(ANSWER_SECONDS_MAX)
            for piece in _pieces(rng, logins.login(rng)):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            client = WireClient(connection)
            while True:
                client.receive_frame()

    def sweep(self) -> None:
        """Read back all that was written and delete it, make the topics that are missing, and look for faults."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=-1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, configs in TOPICS.items()
        ]
        for answer in self._client.call(CreateTopicsRequest(topics=topics), 7).topics:
            if answer.error_code not in {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
                self.findings.append(f"{answer.name} cannot be created: {answer.error_message}")
        for name in TOPICS:
            for partition in range(PARTITIONS):
                self._read_back(name, partition)
        self._look()

    def _requests(self, rng: Random, number: int) -> Iterator[Sent]:
        kinds = [REQUESTS[number % len(REQUESTS)]]
        kinds += [
            rng.choice(_PRODUCE_AND_FETCH if rng.random() < 0.5 else REQUESTS)
            for _ in range(rng.choice((0, 0, 0, 1, 4)))
        ]
        make = Requests(rng, self._learned, rng.choice(LARGE) if rng.random() < self._large_rate else 0)
        whole = True
        for index, (cls, version) in enumerate(kinds):
            message = make.any(cls, version)
            content = b"".join(encode(message, version))
            # Each version is sent whole in every second round.
            kind = 0.0 if index == 0 and number // len(REQUESTS) % 2 == 0 else rng.random()
            if kind > 0.6:
                whole = False
                content = lying(rng, message, version) if kind < 0.75 else damaged(rng, content)
            head = header(cls.api.key, version, index, f"fuzz-{number}")
            head += b"\0" if cls.api.is_flexible(version) else b""
            data = frame(head + content)
            if kind > 0.9:
                data = damaged(rng, data[:20]) + data[20:]
            yield Sent(cls, version, data, whole)

    def _receive(self, connection: socket.socket, number: int, case: list[Sent]) -> None:
        """Receive the answers that may come, and check those to whole requests."""
        connection.settimeout(ANSWER_SECONDS_MAX)
        client = WireClient(connection)
        # By their correlation ids; a damaged request may have that of one before it.
        unanswered = dict(enumerate(case))
        with contextlib.suppress(TimeoutError, ClosedByBrokerError):
            for _ in case:
                body = client.receive_frame()
                (index,) = struct.unpack_from(">i", body)
                sent = unanswered.pop(index, None)
                if sent is not None and sent.whole:
                    self._check(number, sent, body)

    def _check(self, number: int, sent: Sent, body: bytes) -> None:
        what = f"case {number}, {sent.cls.__name__} v{sent.version}"
        try:
            response = decode_response(RESPONSES[sent.cls.api.key], sent.version, body)
            if sent.cls is FetchRequest:
                for partition in (item for topic in response.responses for item in topic.partitions):
                    _check_records(partition.records)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is wrong
            self.findings.append(f"{what}: {error!r} in the answer {body[:200].hex()}")
            return
        self.answered.add((sent.cls.__name__, sent.version))
        self._learned.learn(response)

    def _read_back(self, topic: str, partition: int) -> None:
        """Read a partition to its end, and delete what it holds."""
        offset, end = 0, 1
        while offset < end:
            answer = self._client.fetch(topic, offset, partition=partition)
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                offset, _ = self._client.offset_at(topic, SpecialTimestamp.EARLIEST, partition)
                continue
            if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # a case has deleted it, or made it with fewer
            if answer.error_code:
                self.findings.append(
                    f"{topic}:{partition} cannot be read at {offset}: error {answer.error_code}"
                )
                return
            end = answer.high_watermark
            headers = _check_records(answer.records)
            if not headers:
                break
            offset = max(item.base_offset + item.last_offset_delta for item in headers) + 1
        deletion = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=-1)]
        )
        self._client.call(DeleteRecordsRequest(topics=[deletion], timeout_ms=10_000), 2)

    def _look(self) -> None:
        """Look for what no peer may bring about."""
        log = self.broker.log()
        lines = log[self._log_read :].splitlines()
        self._log_read = len(log)
        for at, line in enumerate(lines):
            if any(item in line for item in _FAULTS):
                self.findings.append("\n".join(lines[at : at + 60]))
                break
        if self.broker.worker_pids() != [self.worker_pid]:
            self.findings.append(f"the worker ended: {self.broker.log()[-3000:]}")
        status = Path(f"/proc/{self.worker_pid}/statm").read_text().split()
        self.rss_bytes.append(int(status[1]) * 4096)
        self.keys = int(self.redis.dbsize())
        if self.keys > KEYS_MAX:
            self.findings.append(f"{self.keys} keys in Redis")

    def check_memory(self) -> None:
        """Check that the worker's memory is flat after its first third."""
        third = len(self.rss_bytes) // 3
        if third and self.rss_bytes[-1] > max(self.rss_bytes[: third + 1]) + RSS_GROWTH_BYTES_MAX:
            self.findings.append(f"the worker's memory grew: {[item >> 20 for item in self.rss_bytes]} MiB")

    def _work(self) -> None:
        """Be the client that does nothing wrong."""
        try:
            with Client(self.broker.address, client_id=HEALTHY) as client:
                while not self._ending.wait(0.05):
                    began = time.monotonic()
                    value = b"%d" % self.healthy
                    offset = client.append(HEALTHY, value)
                    assert batches.values(client.fetch(HEALTHY, offset).records) == [value]
                    self.healthy += 1
                    self.healthy_seconds_max = max(self.healthy_seconds_max, time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - of a thread, reported with all the others
            self.findings.append(f"the healthy client failed after {self.healthy} records: {error!r}")


def _pieces(rng: Random, data: bytes) -> Iterator[bytes]:
    """Part what is written: mostly all at once, now and then slowly or byte by byte, or not to its end."""
    kind = rng.random()
    if kind < 0.6:
        yield data
        return
    if kind < 0.7:
        data = data[: rng.randrange(len(data))]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 2, 5))))
    if kind > 0.97:
        cuts = list(range(min(len(data), 50)))
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        yield data[start:stop]
        time.sleep(rng.choice((0.0, 0.0, 0.001)))


def _check_records(data: Any) -> list[Any]:
    """Check that fetched records are whole batches whose checksums are right; returns their headers."""
    if not data:
        return []
    headers = batches.headers_of(data)
    result: Any = MemoryRecords(bytes(data))
    while (item := result.next_batch()) is not None:
        assert item.validate_crc(), "a batch with a wrong checksum"
    return headers
