"""Names in Redis: the documented ones, and the same ones as docs/redis-schema.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from redis.crc import key_slot

from korvet.errors import ConfigError
from korvet.redis.keys import TAG_LENGTH, Keys, decode_group_id, encode_group_id
from korvet.redis.slots import SLOTS, slot_tags, tag_of
from tests.support import golden

SCHEMA = Path(__file__).parents[2] / "docs" / "redis-schema.md"
DATA = Path(__file__).parents[1] / "data" / "format-2"
KEYS = Keys("korvet")
METHODS = (
    Keys.stream,
    Keys.state,
    Keys.index,
    Keys.moving,
    Keys.open_transactions,
    Keys.aborted,
    Keys.share_groups,
)
GROUP_METHODS = (
    Keys.group_offsets,
    Keys.group_state,
    Keys.group_members,
    Keys.group_deadlines,
    Keys.group_pending,
    Keys.group_assignments,
)
CHANNELS = {KEYS.append_channel("orders", 0), KEYS.group_channel("billing"), KEYS.topics_channel, KEYS.probe}


def section(title: str) -> set[str]:
    text = SCHEMA.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def partitioned(keys: Keys = KEYS, partition: int = 0, tag: str = "") -> set[str]:
    of = ("orders", partition)
    clean = {keys.clean(*of, which, tag) for which in (0, 1)}
    return {method(keys, *of, tag) for method in METHODS} | clean


def grouped(keys: Keys = KEYS, group: str = "billing") -> set[str]:
    return {method(keys, group) for method in GROUP_METHODS}


def single_keys() -> set[str]:
    names = {name for name in vars(KEYS) if name not in {"namespace", "topics_channel"}}
    return {getattr(KEYS, name) for name in names}


def test_the_schema_lists_exactly_the_keys_of_the_code() -> None:
    methods = {name for name in vars(Keys) if not name.startswith("_") and callable(getattr(Keys, name))}
    named = {method.__name__ for method in (*METHODS, *GROUP_METHODS, Keys.transaction)}
    named |= {Keys.pipeline_lease.__name__, Keys.pipeline_fence.__name__}
    others = {"clean", "append_channel", "group_channel", "membership_of", "consumer_group", "parse_stream"}
    assert methods == named | others | {"epoch_of", "replication_mark_of"}
    assert section("Keys") == partitioned() | grouped() | single_keys() | of_nodes("tag") | {
        KEYS.transaction("payments"),
        KEYS.pipeline_lease("sales"),
        KEYS.pipeline_fence("sales"),
    }


def test_the_lease_of_a_pipeline_shares_the_slot_of_its_fence_and_is_no_stream() -> None:
    assert key_slot(KEYS.pipeline_lease("0").encode()) == key_slot(KEYS.pipeline_fence("0").encode())
    assert KEYS.parse_stream(KEYS.pipeline_lease("0").encode()) is None


def of_nodes(tag: str) -> set[str]:
    return {KEYS.epoch_of(tag), KEYS.replication_mark_of(tag)}


def test_keys_of_nodes_have_the_slot_of_their_tag() -> None:
    assert {key_slot(key.encode()) for key in of_nodes(tag_of(4711))} == {4711}
    assert of_nodes("") == {KEYS.epoch, KEYS.replication_mark}


def test_the_schema_lists_exactly_the_channels_of_the_code() -> None:
    assert section("Channels") == CHANNELS


def test_side_keys_share_the_cluster_slot_of_their_stream() -> None:
    for partition in range(50):
        slots = {key_slot(key.encode()) for key in partitioned(partition=partition)}
        assert len(slots) == 1


@pytest.mark.parametrize("slot", [0, 4711, SLOTS - 1])
def test_all_keys_and_the_channel_of_a_partition_with_a_slot_tag_have_the_slot_of_the_tag(slot: int) -> None:
    tag = slot_tags()[slot]
    assert len(tag) == TAG_LENGTH
    names = partitioned(tag=tag) | {KEYS.append_channel("orders", 0, tag)}
    assert {key_slot(name.encode()) for name in names} == {slot}
    assert not names & (partitioned() | partitioned(partition=1, tag=tag))
    assert KEYS.stream("orders", 0, tag) == f"korvet:orders:0:{{{tag}}}"
    assert KEYS.parse_stream(KEYS.stream("orders", 0, tag).encode()) is None


GROUPS = ["billing", "", "a:b", "{x}", "}{", "%7B", "{%7B%25}", "größe", "a b\n\0", "%%25"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_keys_of_a_group_of_any_name_share_one_cluster_slot(group: str) -> None:
    assert len({key_slot(key.encode()) for key in grouped(group=group)}) == 1
    assert decode_group_id(encode_group_id(group)) == group


def test_no_two_groups_share_a_name() -> None:
    keys = [key for group in GROUPS for key in grouped(group=group)]
    assert len(keys) == len(set(keys))


def test_a_group_takes_no_name_of_a_topic() -> None:
    of_topics = {KEYS.stream("group", 0), KEYS.append_channel("group", 0)}
    assert not of_topics & (grouped(group="0") | {KEYS.group_channel("0")})


def test_a_transactional_id_takes_no_name_of_a_topic_or_another_id() -> None:
    assert KEYS.stream("transaction", 0) != KEYS.transaction("0")
    keys = [KEYS.transaction(name) for name in GROUPS]
    assert len(keys) == len(set(keys))
    assert all("{" not in key for key in keys)


def test_a_stream_parses_to_its_partition() -> None:
    assert KEYS.parse_stream(KEYS.stream("a.b-c", 12).encode()) == ("a.b-c", 12)
    for other in (
        "korvet:topics",
        "orders:0",
        "korvet:orders:",
        "korvet:orders:01",
        "other:orders:0",
        "\xff",
    ):
        assert KEYS.parse_stream(other.encode("latin-1")) is None


def test_the_change_feed_shares_the_cluster_slot_of_the_registry() -> None:
    assert key_slot(KEYS.topics.encode()) == key_slot(KEYS.topic_changes.encode())
    assert key_slot(KEYS.broker_configs.encode()) == key_slot(KEYS.topic_changes.encode())
    assert key_slot(KEYS.keeper_lease.encode()) == key_slot(KEYS.keeper_fence.encode())
    assert key_slot(KEYS.probe.encode()) == key_slot(KEYS.probe_side.encode())


def test_two_namespaces_share_no_name() -> None:
    other = Keys("other")
    ours = partitioned() | grouped() | single_keys() | CHANNELS
    theirs = partitioned(other) | grouped(other) | {getattr(other, name) for name in vars(KEYS)}
    assert not ours & theirs


@pytest.mark.parametrize("namespace", ["", "{korvet}", "a}b", "a{b"])
def test_a_namespace_that_would_move_the_hash_tag_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        Keys(namespace)


NOT_IN_DATA = {
    *(KEYS.keeper_lease, KEYS.archiver_lease, KEYS.pipeline_lease("sales")),  # they expire
    KEYS.brokers,  # which brokers run
    *(KEYS.replication_mark, KEYS.probe, KEYS.probe_side),  # nothing reads what they hold
    *of_nodes("tag"),  # of a Redis Cluster
}


@pytest.mark.parametrize("layout", golden.LAYOUTS)
def test_the_data_for_later_versions_have_every_kind_of_key_and_no_other(layout: str) -> None:
    commands = map(json.loads, (DATA / f"{layout}.jsonl").read_text(encoding="ascii").splitlines())
    keys = {words[1] for words in commands if words[0] != "XGROUP"}
    of_kind = {kind: set(filter(re.compile(pattern_of(kind)).fullmatch, keys)) for kind in section("Keys")}
    absent = {KEYS.moving("orders", 0)} if layout == "batch" else set()
    assert {kind for kind in of_kind if not of_kind[kind]} == NOT_IN_DATA | absent
    assert keys == set().union(*of_kind.values())


def pattern_of(kind: str) -> str:
    """Return an expression for the keys of a kind, which has names of the schema for any others."""
    return re.sub(r"\d", r"\\d", re.sub("orders|billing|payments|sales", "[^:]+", re.escape(kind)))
