"""korvet/lake/registration.py: which names tables have in a catalog, as topics come, go and are re-created."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from korvet.errors import LakeError
from korvet.lake.registration import CatalogEntry, plain_name, plan
from korvet.lake.table import LakeTopic
from tests.support.archives import Topics, topic_id


class Catalog:
    """A catalog, which does what plans say."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.entries: dict[str, CatalogEntry] = {}

    def sync(self, location: str = "") -> dict[str, str]:
        """Apply a plan; returns its changes by name."""
        planned = plan(self.topics.stores, location or self.topics.lake, self.entries)
        self.entries |= {item.name: item for item in (*planned.add, *planned.change)}
        for item in planned.drop:
            del self.entries[item.name]
        assert all(item.name in self.entries for item in planned.taken)
        return {item.name: change for change, some in planned._asdict().items() for item in some}

    def topic(self, name: str) -> LakeTopic:
        """Return what a name stands for."""
        result = self.entries[name]
        assert result.of is not None
        assert result.location == f"{self.topics.lake}/{result.of.topic}/{result.of.topic_id}"
        return result.of


@pytest.fixture
def catalog(topics: Topics) -> Catalog:
    """Give one without entries."""
    return Catalog(topics)


def make(topics: Topics, name: str, number: int) -> LakeTopic:
    """Make a topic with a table."""
    of = topics.make(name, "batch", number=number).of
    topics.source.lake.create(of)
    return of


def test_a_name_leads_to_the_topic_as_it_is_and_history_has_one_of_its_own(
    topics: Topics, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.registration.short_id", lambda item: item[-3:].lower())
    first = make(topics, "orders", 0)
    assert catalog.sync() == {"orders": "add"}
    assert catalog.sync() == {}
    topics.delete("orders")
    topics.make("others", "batch", number=5)
    assert catalog.sync() == {"orders__aa0": "add"}
    # Until there is a table of its successor, the name leads where it did.
    second = topics.make("orders", "batch", number=1).of
    assert catalog.sync() == {}
    assert catalog.topic("orders") == catalog.topic("orders__aa0") == first
    topics.source.lake.create(second)
    assert catalog.sync() == {"orders": "change"}
    assert (catalog.topic("orders"), catalog.topic("orders__aa0")) == (second, first)
    topics.source.lake.remove_table(first)
    assert catalog.sync() == {"orders__aa0": "drop"}
    topics.delete("orders")
    assert catalog.sync() == {"orders__aa1": "add"}
    make(topics, "kept", 6)
    assert catalog.sync() == {"kept": "add"}
    topics.source.lake.remove_table(second)
    assert catalog.sync() == {"orders": "drop", "orders__aa1": "drop"}


def test_topics_that_would_have_the_same_name_keep_it_in_the_order_in_which_they_came(
    topics: Topics, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.registration.short_id", lambda item: item[-3:].lower())
    dashed = make(topics, "a-b", 0)
    assert catalog.sync() == {"a_b": "add"}
    plain, upper = make(topics, "a_b", 1), make(topics, "A-B", 2)
    assert catalog.sync() == {"a_b__aa1": "add", "a_b__aa2": "add"}
    assert [catalog.topic(name) for name in ("a_b", "a_b__aa1", "a_b__aa2")] == [dashed, plain, upper]
    # At first the one that is really called so has it.
    catalog.entries.clear()
    catalog.sync()
    assert catalog.topic("a_b") == plain
    assert plain_name("X" * 249) == "x" * 200


def test_entries_of_others_and_of_other_lakes_stay(topics: Topics, catalog: Catalog) -> None:
    make(topics, "orders", 0)
    other = CatalogEntry("elsewhere", LakeTopic("elsewhere", topic_id(9)), "/another/lake/elsewhere/x")
    catalog.entries = {"orders": CatalogEntry("orders", None, "/x"), "elsewhere": other}
    assert catalog.sync() == {"orders": "taken"}
    assert catalog.entries == {"orders": CatalogEntry("orders", None, "/x"), "elsewhere": other}
    del catalog.entries["orders"]
    assert catalog.sync() == {"orders": "add"}
    # A lake that is reached in another way is the same lake.
    assert catalog.sync("s3a://lakes/korvet/") == {"orders": "change"}
    assert catalog.entries["orders"].location == f"s3a://lakes/korvet/orders/{topic_id(0)}"


def test_a_redis_without_topics_changes_no_name(topics: Topics, catalog: Catalog) -> None:
    assert catalog.sync() == {}
    make(topics, "orders", 0)
    catalog.sync()
    topics.delete("orders")
    with pytest.raises(LakeError, match="there is no topic at all"):
        catalog.sync()


def test_a_lake_that_is_not_there_drops_no_name(topics: Topics, catalog: Catalog) -> None:
    of = make(topics, "orders", 0)
    catalog.sync()
    lake = Path(topics.lake)
    away = lake.rename(lake.with_name("away"))
    # Neither mounted, nor is anything at the place to mount it.
    for _ in range(2):
        with pytest.raises(LakeError, match=r"names lead to tables .* \(orders\): is the lake mounted"):
            catalog.sync()
        lake.mkdir(exist_ok=True)
    lake.rmdir()
    away.rename(lake)
    assert catalog.sync() == {}
    assert catalog.topic("orders") == of


def test_a_table_that_is_no_archive_gets_no_name(topics: Topics, catalog: Catalog) -> None:
    make(topics, "orders", 0)
    write_deltalake(f"{topics.lake}/tables/{topic_id(7)}", pa.table({"id": [1]}))
    assert catalog.sync() == {"orders": "add"}
