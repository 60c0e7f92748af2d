"""Enforces client quotas in one worker: counts what clients use, and says for how long a client is to wait.

The table of quotas is refreshed when another process changes it. What is used is counted for the broker (usage.py). As
in Kafka nothing is counted for a client without a quota.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from korvet.clock import CLOCK, Clock
from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.security.quotas import Entity, Limit, Quota, QuotaStore, QuotaTable
from korvet.security.usage import Rate, Usage, Windows, entry_key


class ClientQuotas:
    """The quotas of the cluster, and what this broker's clients have used of them."""

    def __init__(
        self,
        store: QuotaStore,
        usage: Usage,
        mutation_windows: Windows,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        """`mutation_windows` say how many controller mutations a client may do at once: those of as much time."""
        self._store = store
        self.usage = usage
        self._burst_s = mutation_windows.span_ms / 1000
        # All processes of a machine share its monotonic time.
        self._clock = clock
        self.table = QuotaTable({})
        self._followers: list[Callable[[QuotaTable], object]] = []

    def follow(self, use: Callable[[QuotaTable], object]) -> None:
        """Call `use`, which must not fail, with the quotas, and again after each change."""
        self._followers.append(use)
        use(self.table)

    def refresh(self) -> None:
        """Read Redis if quotas have changed; raises KafkaError and StorageUnavailableError if that fails."""
        entities = self._store.load_if_changed()
        if entities is None:
            return
        self.table = QuotaTable(entities)
        for use in self._followers:
            use(self.table)

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set and remove quotas of an entity; raises KafkaError and StorageUnavailableError."""
        self._store.alter(entity, changes)
        self.refresh()

    def charge(self, quota: Quota, user: str, client_id: str | None, value: float) -> int:
        """Count `value` for a client, and return for how long it is to wait (ms).

        A request_percentage throttles for one window at most, as in Kafka.
        """
        limit = self.table.limit(quota, user, client_id or "")
        if limit is None:
            return 0
        key, now_ms = _key(quota, limit), self._now_ms()
        self.usage.record(key, value, now_ms)
        waits_ms = self.usage.rate(key, now_ms).throttle_ms(limit.bound)
        most_ms = self.usage.windows.size_ms if quota is Quota.REQUEST_PERCENTAGE else INT32_MAX
        return round(min(waits_ms, most_ms))

    def value_max(self, quota: Quota, user: str, client_id: str | None) -> float | None:
        """Return how much a client may use at once and not be over its quota by that alone, None for any amount."""
        limit = self.table.limit(quota, user, client_id or "")
        if limit is None:
            return None
        return limit.bound * (self.usage.windows.number - 1) * self.usage.windows.size_ms / 1000

    def take_tokens(self, user: str, client_id: str, value: float, *, strict: bool) -> float:
        """Count changes of topics, and return for how long the client is to wait (ms)."""
        limit = self.table.limit(Quota.CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return 0.0
        missing = self.usage.take_tokens(
            _key(Quota.CONTROLLER_MUTATION_RATE, limit),
            limit.bound,
            limit.bound * self._burst_s,
            value,
            self._now_ms(),
            strict=strict,
        )
        return missing / limit.bound * 1000

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def count(self, *names: str, value: float = 1.0) -> Rate:
        """Count connections for an entry of that name, and return its rate."""
        key, now_ms = entry_key(*names), self._now_ms()
        self.usage.record(key, value, now_ms)
        return self.usage.rate(key, now_ms)


class Mutations:
    """The changes of topics of one request; `strict` refuses those that are too many (KIP-599).

    `throttle_ms` is how long its client is to wait.
    """

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str, *, strict: bool) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._strict = strict
        self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Count the partitions that are about to be created or deleted.

        Raises KafkaError THROTTLING_QUOTA_EXCEEDED if the client is over its quota, and the request is strict.
        """
        waits_ms = self._quotas.take_tokens(self._user, self._client_id, partitions, strict=self._strict)
        if waits_ms:
            self.throttle_ms = min(round(waits_ms), INT32_MAX)
            if self._strict:
                message = "The throttling quota has been exceeded."
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)


def _key(quota: Quota, limit: Limit) -> int:
    return entry_key(quota, limit.user, limit.client_id)
