"""Every name Korvet uses in Redis: keys and pub/sub channels, as functions of the namespace.

`docs/redis-schema.md` has the same list with types and writers, and a test compares the two. Scripts build no names of
their own: they get them in KEYS.

The stream keeps the documented name, `korvet:orders:0`. Its side keys carry that whole name in braces,
`{korvet:orders:0}:state`: Redis Cluster hashes only what stands in the first pair of braces, so they share
the slot of the stream, which has no braces and is hashed as it is ("Redis cluster specification", hash tags).

A topic with redis.placement=even has a slot tag for each partition in its row, which puts the partition where that
wants it: its keys are `korvet:orders:0:{tag}` and `korvet:orders:0:{tag}:state`.
"""

from __future__ import annotations

from korvet.errors import ConfigError

TAG_LENGTH = 3
"""Characters of a slot tag: with two of them most slots have none."""


class Keys:
    """The names in one namespace; two brokers with the same Redis and namespace are one cluster."""

    def __init__(self, namespace: str) -> None:
        """Raise ConfigError for an empty namespace, and for braces: they would move the hash tag."""
        if not namespace or "{" in namespace or "}" in namespace:
            msg = f"namespace {namespace!r} cannot be used: it must not be empty and must not contain braces"
            raise ConfigError(msg)
        self.namespace = namespace
        self.topics = f"{namespace}:topics"
        self.topic_changes = f"{{{namespace}:topics}}:changes"
        self.topics_channel = f"{namespace}:topics"
        # In the slot of the feed: one script writes both.
        self.broker_configs = f"{{{namespace}:topics}}:brokers"
        self.users = f"{{{namespace}:topics}}:users"
        self.quotas = f"{{{namespace}:topics}}:quotas"
        self.acls = f"{{{namespace}:topics}}:acls"
        self.features = f"{{{namespace}:topics}}:features"
        self.group_configs = f"{{{namespace}:topics}}:groups"
        self.replication_mark = f"{namespace}:replication-mark"
        self.cluster_id = f"{namespace}:cluster-id"
        self.epoch = f"{namespace}:epoch"
        self.brokers = f"{namespace}:brokers"
        self.data_format = f"{{{namespace}:brokers}}:format"
        self.groups = f"{namespace}:groups"
        self.groups_looked_at = f"{{{namespace}:groups}}:looked-at"
        self.transactions = f"{namespace}:transactions"
        self.keeper_lease = f"{namespace}:keeper"
        self.keeper_fence = f"{{{namespace}:keeper}}:fence"
        self.archiver_lease = f"{namespace}:archiver"
        self.archiver_fence = f"{{{namespace}:archiver}}:fence"
        self.pipelines = f"{namespace}:pipelines"
        # Named like a log and its side keys: an ACL rule that matches these matches those.
        self.probe = f"{namespace}:probe"
        self.probe_side = f"{{{namespace}:probe}}:side"

    def epoch_of(self, tag: str) -> str:
        """Return the hash with the leader epoch of a node: by a hash tag of one of its slots, "" without a cluster."""
        return f"{self.epoch}:{{{tag}}}" if tag else self.epoch

    def replication_mark_of(self, tag: str) -> str:
        """Return the key that is written before replicas are waited for, as `epoch_of`."""
        return f"{self.replication_mark}:{{{tag}}}" if tag else self.replication_mark

    def stream(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the stream that is the log of one partition; `tag` is the partition's slot tag, "" without one."""
        name = f"{self.namespace}:{topic}:{partition}"
        return f"{name}:{{{tag}}}" if tag else name

    def parse_stream(self, stream: bytes) -> tuple[str, int] | None:
        """Return topic and partition of a stream without a slot tag; None if the name is not that of such a log."""
        topic, _, partition = (
            stream.decode("utf-8", "replace").removeprefix(f"{self.namespace}:").rpartition(":")
        )
        if not partition.isdecimal() or self.stream(topic, int(partition)).encode() != stream:
            return None
        return topic, int(partition)

    def _side(self, topic: str, partition: int, tag: str, name: str) -> str:
        stream = self.stream(topic, partition, tag)
        return f"{stream}:{name}" if tag else f"{{{stream}}}:{name}"

    def state(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the hash with the partition's topic id, its log's end and counters, and its idempotent producers."""
        return self._side(topic, partition, tag, "state")

    def index(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the sorted set that is the partition's sparse index."""
        return self._side(topic, partition, tag, "index")

    def open_transactions(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the sorted set of the producers that have an open transaction in the partition."""
        return self._side(topic, partition, tag, "open")

    def aborted(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the sorted set of the partition's aborted transactions."""
        return self._side(topic, partition, tag, "aborted")

    def moving(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the stream of external entries on their way to free offsets; absent at rest."""
        return self._side(topic, partition, tag, "moving")

    def clean(self, topic: str, partition: int, which: int, tag: str = "") -> str:
        """Return one of the two streams that hold the compacted part of the log in turns; `which` is 0 or 1."""
        return self._side(topic, partition, tag, f"clean:{which}")

    def share_groups(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the hash with the parts that share groups have of the partition."""
        return self._side(topic, partition, tag, "share")

    def append_channel(self, topic: str, partition: int, tag: str = "") -> str:
        """Return the channel on which every append to the partition is announced: named as its stream."""
        return self.stream(topic, partition, tag)

    def group_offsets(self, group: str) -> str:
        """Return the hash with the group's committed offsets; its side keys are named after it."""
        return f"{self.namespace}:group:{encode_group_id(group)}:offsets"

    def group_state(self, group: str) -> str:
        """Return the hash with the group's state, generation and protocol."""
        return f"{{{self.group_offsets(group)}}}:group"

    def group_members(self, group: str) -> str:
        """Return the hash with the group's members, their metadata and assignments."""
        return f"{{{self.group_offsets(group)}}}:members"

    def group_deadlines(self, group: str) -> str:
        """Return the sorted set of the ends (ms) of the members' sessions."""
        return f"{{{self.group_offsets(group)}}}:deadlines"

    def group_assignments(self, group: str) -> str:
        """Return the hash with what the members of a group of the consumer protocol own and are to own."""
        return f"{{{self.group_offsets(group)}}}:assignments"

    def group_pending(self, group: str) -> str:
        """Return the hash with the offsets that transactions have yet to commit to the group."""
        return f"{{{self.group_offsets(group)}}}:pending"

    def transaction(self, transactional_id: str) -> str:
        """Return the hash with the state of a transactional id.

        Without `:state` that of id `0` could be the stream of a topic `transaction`.
        """
        return f"{self.namespace}:transaction:{encode_group_id(transactional_id)}:state"

    def pipeline_lease(self, name: str) -> str:
        """Return the lease of the process that runs a pipeline.

        Without `:lease` that of pipeline `0` could be the stream of a topic `pipeline`.
        """
        return f"{self.namespace}:pipeline:{name}:lease"

    def pipeline_fence(self, name: str) -> str:
        """Return the counter of the tokens of that lease."""
        return f"{{{self.pipeline_lease(name)}}}:fence"

    def membership_of(self, group: str) -> tuple[str, str, str]:
        """Return the state, the members and the deadlines of a group, the first keys of every script of groups."""
        return self.group_state(group), self.group_members(group), self.group_deadlines(group)

    def consumer_group(self, group: str) -> tuple[str, str, str, str]:
        """Return these and the assignments, the keys of the scripts of groups of the consumer protocol."""
        return (*self.membership_of(group), self.group_assignments(group))

    def group_channel(self, group: str) -> str:
        """Return the channel on which the group's transitions are announced: named as its offsets.

        Without `:offsets` it could be the channel of a partition of a topic `group`.
        """
        return self.group_offsets(group)


def encode_group_id(group: str) -> str:
    """Return a group id as it stands in keys and the list of groups: without braces, which would move the hash tag.

    Transactional ids are encoded as group ids are.
    """
    return group.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def decode_group_id(encoded: str) -> str:
    """Return the group id that `encode_group_id` encoded."""
    return encoded.replace("%7D", "}").replace("%7B", "{").replace("%25", "%")
