"""Requests served in the test's own process: from the bytes of a socket to a worker's dispatcher, and their answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gevent
from gevent import socket as gevent_socket

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.handlers.registry import Handler
from korvet.log.replication import Replicas
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.client_quotas import ClientQuotas
from korvet.security.quotas import QuotaStore
from korvet.security.session import Session
from korvet.security.usage import UsageTable
from korvet.server.net.budget import Budgets
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.framing import ConnectionLimits, Frame, FrameReader
from korvet.server.net.socket import Channel
from korvet.server.serving_lease import ServingLease
from tests.support.wire_client import RESPONSES, decode_response, request_frame

TIMEOUT_MS = 60_000


def dispatcher(
    redis: Redis,
    handlers: Mapping[int, Handler],
    contexts: Sequence[object],
    quotas: ClientQuotas | None = None,
) -> Dispatcher:
    """Return a dispatcher of a worker without replicas, whose lease is long."""
    replicas = Replicas(lambda: redis, redis, Keys("korvet"), replicas=0, timeout_ms=TIMEOUT_MS)
    lease = ServingLease(redis, TIMEOUT_MS)
    return Dispatcher(handlers, contexts, replicas, lease, quotas or client_quotas(redis))


def client_quotas(redis: Redis, clock: Clock = CLOCK) -> ClientQuotas:
    """Return the quotas of a broker with one worker, none of them read yet."""
    usage = UsageTable.of(Settings(), workers=1).worker(0)
    return ClientQuotas(QuotaStore(redis, Keys("korvet")), usage, usage.windows, clock=clock)


@contextmanager
def received(data: bytes) -> Iterator[Frame]:
    """Give a request's frame as its connection reads it; the client waits for the answer until the block ends."""
    ours, theirs = socket.socketpair()
    client = gevent_socket.socket(fileno=theirs.detach())
    with ours, client:
        sending = gevent.spawn(client.sendall, data)
        frame = FrameReader(Channel(ours), ConnectionLimits.of(Settings()), Budgets.of(1 << 30)).next()
        sending.join()
        assert frame is not None
        yield frame
        frame.close()


def answer(by: Dispatcher, request: Message, version: int) -> Any:
    """Serve a request, and return the answer decoded."""
    with received(request_frame(request, version)) as frame:
        chunks = by.begin(frame, Session("peer:1")).result().chunks
    return decode_response(RESPONSES[request.api.key], version, b"".join(chunks)[4:])
