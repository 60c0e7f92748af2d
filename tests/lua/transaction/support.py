"""A transactional id as the scripts see it: plain redis-py, the scripts by EVALSHA."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.lua.support import now_ms, run

KEY = "korvet:transaction:payments:state"
LAST_EPOCH = 32766
TIMEOUT_MS = 60_000
PARTITION, OTHER, GROUP = ("p:korvet:orders:0", "id-1"), ("p:korvet:orders:1", "id-1:abc"), ("g:billing", "")


class Reply(NamedTuple):
    """What a script says about a transaction that is to be completed."""

    then: tuple[bytes, int]
    by: tuple[bytes, int]
    number: int
    commit: bool
    parts: dict[bytes, bytes]


class Transaction:
    """The transactional id `payments`; new producer ids are 100, 101 and so on."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._ids = iter(range(100, 1000))

    def now_ms(self) -> int:
        return now_ms(self.client)

    def init(self, producer_id: int | bytes = -1, epoch: int = -1, *, timeout_ms: int = TIMEOUT_MS) -> Any:
        args = [self.now_ms(), timeout_ms, producer_id, epoch, next(self._ids)]
        return self._read(run(self.client, "transaction/init", [KEY], args))

    def begin(self) -> tuple[bytes, int]:
        _, producer_id, epoch = self.init()
        return producer_id, epoch

    def add(self, by: tuple[bytes, int], *parts: tuple[str, str], mode: str = "add") -> Any:
        args = [mode, *by, *(item for part in parts for item in part)]
        return self._read(run(self.client, "transaction/add", [KEY], args))

    def opened(self, by: tuple[bytes, int], *parts: tuple[str, str]) -> int:
        """Open a transaction; return its number."""
        outcome, _, number = self.add(by, *(parts or [PARTITION]))
        assert outcome == b"ADDED"
        return int(number)

    def end(self, by: tuple[bytes, int], how: str, *, bumps: bool = False) -> Any:
        args = [*by, how, int(bumps), next(self._ids)]
        return self._read(run(self.client, "transaction/end", [KEY], args))

    def complete(self, number: int) -> int:
        done: int = run(self.client, "transaction/complete", [KEY], [number])
        return done

    def ended(self, by: tuple[bytes, int], how: str, *, bumps: bool = False) -> tuple[bytes, int]:
        """End the open transaction wholly; return what the producer goes on with."""
        prepared: Reply = self.end(by, how, bumps=bumps)
        assert self.complete(prepared.number) == 1
        return prepared.then

    def expire(self, expiration_ms: int = 1000) -> Any:
        return self._read(run(self.client, "transaction/expire", [KEY], [expiration_ms]))

    def set(self, **fields: object) -> None:
        self.client.hset(KEY, mapping={name: str(value) for name, value in fields.items()})

    def stored(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.client.hgetall(KEY).items()}

    def state(self) -> str:
        return self.stored()["state"]

    def _read(self, reply: Any) -> Any:
        if isinstance(reply, int) or reply[0] != b"PREPARED":
            return reply
        _, due, then_id, then_epoch, by_id, by_epoch, number, commit, *flat = reply
        assert due > self.now_ms()
        parts = dict(zip(flat[::2], flat[1::2], strict=True))
        return Reply((then_id, then_epoch), (by_id, by_epoch), number, commit == 1, parts)
