"""What members say of records that they have acquired: checked, and taken partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import ErrorCode, KafkaError
from korvet.log.replication import Replicas
from korvet.share.store import SharePartitions
from korvet.share.types import GAP, REJECT, RENEW, Acknowledged, Acknowledgement, AckRange
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import Partition, PartitionRef


def check_ranges(ranges: Sequence[AckRange], *, renews: bool) -> None:
    """Raise KafkaError INVALID_REQUEST for what cannot be, as Kafka does; only who `renews` may renew a lock."""
    last_type = RENEW if renews else REJECT
    end = -1
    for first, last, types in ranges:
        problem = ""
        if not end < first <= last:
            problem = "batches of acknowledgements must be in order, and not overlap"
        elif len(types) not in (1, last - first + 1):
            problem = "a batch of acknowledgements must have one type, or one for each offset"
        elif not all(GAP <= item <= last_type for item in types):
            problem = "a type of acknowledgement is unknown, or not of this request"
        if problem:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        end = last


class Acknowledger:
    """Takes acknowledgements for one worker."""

    def __init__(self, store: SharePartitions, topics: TopicRegistry, replicas: Replicas) -> None:
        self._store = store
        self._topics = topics
        self._replicas = replicas

    def acknowledge(
        self,
        group: str,
        member: str,
        policy: SharePolicy,
        refs: Sequence[PartitionRef[Sequence[AckRange]] | KafkaError],
    ) -> list[KafkaError | None]:
        """Take what is said of each partition, all of it or nothing; returns the errors. Raises nothing.

        What is answered without an error no failover takes back. An error among `refs` is its own answer.
        """

        def prepare(ranges: Sequence[AckRange], _topic: Topic, partition: Partition) -> Acknowledgement:
            return Acknowledgement(partition, group, member, ranges, policy)

        answers = self._topics.ask(refs, prepare, self._acknowledge)
        return [answer if isinstance(answer, KafkaError) else None for answer in answers]

    def _acknowledge(self, given: Sequence[Acknowledgement]) -> Sequence[Acknowledged | KafkaError]:
        try:
            return self._replicas.confirm_call(
                partial(self._store.acknowledge, given), ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        except KafkaError as error:
            # Not raised: the session has gone on to its next epoch, and the request cannot come again.
            return [error.without_frames()] * len(given)
