"""One broker as this program asks it, and the record of its answers."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from korvet.errors import ErrorCode
from tests.differential import wire
from tests.differential.naming import Names
from tests.differential.wire import Api, Body, Request

ANSWER_SECONDS_MAX = 10.0
SETTLE_SECONDS_MAX = 6.0
PAUSE_SECONDS = 0.1
CLOSED, TIMEOUT = "closes the connection", "does not answer"
UNSETTLED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Errors that mean: ask again. How often they come depends on the time."""


Values = Sequence[Any] | Mapping[Any, Any]
"""Values of a field, or values by the names that their requests get."""


class Exchange(NamedTuple):
    """A request, by the words that name it, and its answer: fields, or what happened instead."""

    request: str
    api: str
    version: int
    answer: dict[str, Any] | str


class Session:
    """Asks one broker. `room` is put before the label of each request; `versions` are those of each API to ask."""

    def __init__(self, apis: Mapping[str, Api], port: int, login_port: int) -> None:
        self.apis = apis
        self.port = port
        self.login_port = login_port
        self.room = ""
        self.exchanges: list[Exchange] = []
        self.names = Names((port, login_port))
        self.versions: dict[str, range] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._topics: dict[str, uuid.UUID] = {}
        self._correlation_id = 0

    def served(self) -> dict[str, range]:
        """Return the versions of each API that this broker and the schema have."""
        software = {"ClientSoftwareName": "differential", "ClientSoftwareVersion": "1"}
        rows = {row["ApiKey"]: row for row in self.ask("ApiVersions", 3, None, software)["ApiKeys"]}
        return {
            api.name: range(
                max(rows[api.key]["MinVersion"], api.versions.start), rows[api.key]["MaxVersion"] + 1
            )
            for api in self.apis.values()
            if api.key in rows
        }

    def topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and wait until it has leaders."""
        rows = [{"Name": config, "Value": value} for config, value in (configs or {}).items()]
        topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": rows}
        self.ask("CreateTopics", 7, None, {"Topics": [topic], "TimeoutMs": 10_000})
        body = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
        described: Any = {}
        for _ in patience():
            described = self.ask("Metadata", 12, None, body)["Topics"][0]
            if not described["ErrorCode"] and all(row["LeaderId"] >= 0 for row in described["Partitions"]):
                break
        listed = [{"PartitionIndex": index, "Timestamp": -1} for index in range(partitions)]
        body = {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": listed}]}
        for _ in patience():
            rows = self.ask("ListOffsets", 7, None, body)["Topics"][0]["Partitions"]
            if not any(row["ErrorCode"] for row in rows):
                break
        self._topics[name] = described["TopicId"]
        self.names.uuids[described["TopicId"]] = f"<id of {name}>"
        return name

    def id(self, topic: str) -> uuid.UUID:
        """Return the id of a topic that `topic` created; of another one, an id that no topic has."""
        return self._topics.get(topic, uuid.UUID(int=0xFF))

    def epoch(self, topic: str) -> int:
        """Return the leader epoch of partition 0 of a topic."""
        body = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
        return int(self.ask("Metadata", 12, None, body)["Topics"][0]["Partitions"][0]["LeaderEpoch"])

    def ask(  # noqa: PLR0913 - what may be said of a request, by keyword
        self,
        api: str,
        version: int,
        label: str | None,
        body: Body,
        *,
        on: str = "main",
        login: bool = False,
        hide: Sequence[str] = (),
        request: Request = Request(),  # noqa: B008 - immutable
        spoil: Callable[[bytes], bytes] = bytes,
        answered_in: int | None = None,
    ) -> Any:
        """Send a request and record its answer under a label, or nowhere without one; returns the fields of the answer.

        `on` names the connection, `login` takes the listener with logins, `hide` names fields whose values do not
        count, `spoil` changes the bytes, `answered_in` is the version of the answer if it is another one.
        """
        asked = self.apis[api]
        answered = version if answered_in is None else answered_in
        answer: bytes | str = CLOSED
        fields: Any = {}
        for _ in patience():
            self._correlation_id += 1
            data = spoil(wire.encode(asked, version, body, self._correlation_id, request))
            answer, fields = self.send(data, on=on, login=login), {}
            if isinstance(answer, bytes):
                try:
                    correlation_id, fields = wire.decode(asked, answered, answer)
                    assert correlation_id == self._correlation_id, "an answer to another request"
                except (wire.UndecodableError, struct.error) as error:
                    self.close(on)
                    answer = f"cannot be decoded: {error}"
            if UNSETTLED.isdisjoint(_errors(fields)):
                break
        if label is not None:
            self.note(
                label, api, version, self.names.stable(fields, hide) if isinstance(answer, bytes) else answer
            )
        return fields

    def ask_unanswered(self, api: str, version: int, body: Body) -> None:
        """Send a request that has no answer."""
        data = wire.encode(self.apis[api], version, body, 0, Request())
        self._socket("main", login=False).sendall(struct.pack(">i", len(data)) + data)

    def vary(
        self, api: str, version: int, base: Body, values: Mapping[str, Values], label: str = "", **how: Any
    ) -> None:
        """Ask once for each value of each field, the others as in `base`. A path as Topics.Name goes through lists."""
        for path, options in values.items():
            if self.apis[api].has(path, version):
                named = options if isinstance(options, Mapping) else dict(_named(options))
                for name, value in named.items():
                    shown = f"{label} {path} {name}".strip()
                    self.ask(api, version, shown, changed(base, path, value), **how)

    def note(self, label: str, api: str, version: int, answer: dict[str, Any] | str) -> None:
        """Record what was seen in another way than by `ask`."""
        self.exchanges.append(Exchange(f"{self.room}: {label}", api, version, answer))

    def send(self, data: bytes, *, on: str = "main", login: bool = False, sized: bool = True) -> bytes | str:
        """Send bytes, with their size before them if `sized`; returns the next frame, or what came instead."""
        try:
            connection = self._socket(on, login=login)
            connection.sendall(struct.pack(">i", len(data)) * sized + data)
            return self.receive(on)
        except TimeoutError:
            self.close(on)
            return TIMEOUT
        except (ConnectionError, EOFError):
            self.close(on)
            return CLOSED

    def receive(self, on: str) -> bytes:
        """Return the next frame of a connection."""
        return self._read(on, struct.unpack(">i", self._read(on, 4))[0])

    def close(self, on: str) -> None:
        """Close a connection, if it is open."""
        if connection := self._sockets.pop(on, None):
            connection.close()

    def close_all(self) -> None:
        """Close every connection."""
        for name in list(self._sockets):
            self.close(name)

    def _socket(self, on: str, *, login: bool) -> socket.socket:
        if on not in self._sockets:
            port = self.login_port if login else self.port
            self._sockets[on] = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
            self._sockets[on].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._sockets[on]

    def _read(self, on: str, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._sockets[on].recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data


def patience() -> Iterator[None]:
    """Yield at once, and then after each pause, as long as a broker may take to load a coordinator.

    Real time: Apache Kafka is a process with a clock of its own, and announces nothing when it has loaded.
    """
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    yield
    while time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
        yield


def changed(body: Any, path: str, value: Any) -> Any:
    """Return a copy of a body with another value in a field, in each element of the lists on the way to it."""
    if isinstance(body, list):
        return [changed(element, path, value) for element in body]
    name, _, rest = path.partition(".")
    return {**body, name: changed(body[name], rest, value) if rest else value}


def _errors(answer: Any) -> Iterator[int]:
    """Yield the error codes in an answer."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("ErrorCode"):
                yield value
            else:
                yield from _errors(value)
    elif isinstance(answer, list):
        for element in answer:
            yield from _errors(element)


def _named(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each value with a name: itself, or its place if it is a structure."""
    for place, value in enumerate(values):
        text = f"number {place}" if isinstance(value, dict | list | uuid.UUID) and value else repr(value)
        yield text if len(text) <= 60 else f"{text[:40]}... ({len(text)})", value
