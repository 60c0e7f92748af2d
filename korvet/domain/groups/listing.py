"""Groups as administrators see them: described, listed, deleted, and made to forget offsets.

Knows what Kafka tells of a group in which state, and what may be done with it; nothing of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from korvet.domain.groups.subscription import CONSUMER, subscribed_topics
from korvet.domain.topics import Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.group_list import GroupList, Listed
from korvet.storage.group_removal import ANY_ROW, GroupRemoval, Seen
from korvet.storage.group_store import GroupStore
from korvet.storage.group_types import Described
from korvet.storage.offset_store import Place

CLASSIC = "classic"
"""The type of every group: that of the classic protocol."""

STABLE, DEAD = "Stable", "Dead"

_FORGET_ROUNDS_MAX = 5
"""Tries to forget offsets while the group changes under it."""


class GroupListing:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, groups: GroupStore, names: GroupList, removal: GroupRemoval, topics: Topics) -> None:
        self._groups = groups
        self._names = names
        self._removal = removal
        self._topics = topics

    def describe(self, groups: Sequence[str]) -> list[Described | KafkaError]:
        """Return each group as it is now, or KAFKA_STORAGE_ERROR; Dead is one that does not exist."""
        return self._groups.describe(groups)

    def listed(self, states: Iterable[str], types: Iterable[str]) -> list[Listed]:
        """Return the groups in one of the states and of one of the types, in any case; none named is all of them.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        wanted = {state.lower() for state in states}
        kinds = {kind.lower() for kind in types}
        if kinds and CLASSIC not in kinds:
            return []
        return [each for each in self._names.every() if not wanted or each.state.lower() in wanted]

    def delete(self, group: str) -> None:
        """Delete a group; raises KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, KAFKA_STORAGE_ERROR."""
        self._removal.delete(group)

    def forget(self, group: str, places: Sequence[Place]) -> list[KafkaError | None]:
        """Forget committed offsets; returns for each partition what kept it from being forgotten.

        These are UNKNOWN_TOPIC_OR_PARTITION and GROUP_SUBSCRIBED_TO_TOPIC. Raises KafkaError for all of them:
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that are no consumers), KAFKA_STORAGE_ERROR.
        """
        for _ in range(_FORGET_ROUNDS_MAX):
            [seen] = self._removal.look([group])
            [described] = self._groups.describe([group])
            if isinstance(seen, KafkaError):
                raise seen
            if isinstance(described, KafkaError):
                raise described
            subscribed = self._subscribed(group, seen, described)
            outcomes = {place: self._refusal(group, place, subscribed) for place in places}
            rows: Mapping[Place, bytes] = {
                place: ANY_ROW for place, refused in outcomes.items() if refused is None
            }
            if self._removal.forget(group, seen, rows, drop=False).done:
                return [outcomes[place] for place in places]
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} changes all the time")

    def _subscribed(self, group: str, seen: Seen, described: Described) -> set[str] | None:
        """Return the topics that the members are subscribed to; None: nobody can tell, so it may be any."""
        if described.state == DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
        if seen.is_empty:
            return set()
        if described.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} is {described.state}")
        return subscribed_topics(described)

    def _refusal(self, group: str, place: Place, subscribed: set[str] | None) -> KafkaError | None:
        try:
            self._topics.partition(partial(self._topics.find, place.topic), place.partition)
        except KafkaError as error:
            return error
        if subscribed is None or place.topic in subscribed:
            message = f"group {group} is subscribed to {place.topic}"
            return KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, message)
        return None
