"""Pipelines by a registry's `latest`, whose subject gets another version between two runs or while one runs."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.jvm.spark.test_decoding import NAME, Subject, id_of, record
from tests.jvm.spark.test_pipelines import Runs, runs, sql, target
from tests.support.archives import Topics

__all__ = ["runs"]

pytestmark = pytest.mark.timeout(600)

ID = {"name": "id", "type": "int"}
ORDER = record("Order", ID, NAME)
STRICT = record("Order", ID, NAME, {"name": "amount", "type": "double"})
AMOUNT = record("Order", ID, NAME, {"name": "amount", "type": "double", "default": 0.5})
LOSSY = 'on_error = "dead_letters"'

Make = Callable[..., str]

_NUMBERS = itertools.count()


def register(url: str, subject: str, schema: str) -> None:
    """Register a version of a subject."""
    with SchemaRegistryClient({"url": url}) as client:
        client.register_schema(subject, RegisteredSchema(schema, "AVRO"))


@pytest.fixture
def orders(client: SchemaRegistryClient, topics: Topics) -> Orders:
    """Give a subject of this test's own, whose first version wrote order 1."""
    return Orders(Subject(client, f"{next(_NUMBERS)}-orders"), topics)


class Orders:
    """Orders of a topic, written by the versions of a subject."""

    def __init__(self, subject: Subject, topics: Topics) -> None:
        self.subject = subject
        self._topics = topics
        [self._partition] = topics.make("orders", "batch").partitions
        self.write(1)

    def write(self, number: int, schema: str = ORDER, subject: str | None = None, **more: Any) -> int:
        """Write an order by a schema, which the subject has after that; return the schema's id."""
        to = Subject(self.subject.client, subject or self.subject.name)
        data = to.write(schema, {"id": number, "name": "x"} | more)
        self.produce(data)
        return id_of(data)

    def produce(self, data: bytes) -> None:
        self._topics.produce(self._partition, data)

    def unread(self) -> dict[str, int]:
        return self._topics.stores.pipelines.read()[0].unread_fields


@pytest.fixture
def pipeline(url: str, orders: Orders) -> Make:
    """Give what makes a pipeline's file, of that subject."""

    def make(
        source: str = "",
        version: str = "latest",
        at: str = url,
        select: str = "SELECT value.* FROM orders",
        schema_evolution: str = "add_columns",
        **settings: object,
    ) -> str:
        return (
            f'[registry]\nurl = "{at}"\n[sources.orders]\ntopics = ["orders"]\n{source}\n[sources.orders.value]\n'
            f'format = "avro"\nregistry = true\nsubject = "{orders.subject.name}-value"\nversion = "{version}"\n'
            + sql(select)
            + target(schema_evolution=schema_evolution, **settings)
        )

    return make


def rows(runs: Runs) -> list[tuple[Any, ...]]:
    """Return ids and amounts."""
    return sorted((row["id"], row.get("amount")) for row in runs.table())


def dead(runs: Runs) -> list[int]:
    return sorted(row["offset"] for row in runs.table("orders_dead_letters"))


@pytest.mark.parametrize(
    ("evolution", "select", "amounts", "problem"),
    [
        ("add_columns", "SELECT value.* FROM orders", [2.5, 0.5], None),
        ("none", "SELECT value.id FROM orders", [None, None], None),
        ("none", "SELECT value.* FROM orders", [], 'has no column amount; "add_columns" adds it'),
        ("add_columns", "SELECT a.value.* FROM orders a JOIN orders b USING (offset)", [], "keeps state"),
    ],
)
def test_a_new_version_is_read_by_from_the_next_start_on_as_far_as_the_table_may_follow(
    runs: Runs,
    pipeline: Make,
    orders: Orders,
    *,
    evolution: str,
    select: str,
    amounts: list[float],
    problem: str | None,
) -> None:
    text = pipeline(select=select, schema_evolution=evolution)
    assert runs(text) is None
    orders.write(2, AMOUNT, amount=2.5)
    orders.write(3)
    refused = runs(text) or ""
    assert rows(runs) == [(1, None), *zip([2, 3], amounts, strict=False)]
    assert orders.unread() == {}
    if problem is None:
        assert refused == ""
    else:
        assert problem in refused
        assert "orders-value has version 2 now; version = 1 keeps the one before" in refused


@pytest.mark.parametrize("source", ["", LOSSY])
def test_a_version_that_comes_while_a_pipeline_runs_is_read_by_from_its_first_record_on(
    runs: Runs, pipeline: Make, orders: Orders, url: str, source: str
) -> None:
    assert runs(pipeline(source=source)) is None
    orders.write(2)
    # Its id is known elsewhere, and the subject has it only once the pipeline has asked for its newest version.
    orders.write(3, AMOUNT, "elsewhere", amount=2.5)
    if source:
        orders.produce(b"?")
    newer = partial(register, url, f"{orders.subject.name}-value", AMOUNT)
    assert runs(pipeline(source=source), before=newer) is None
    assert rows(runs) == [(1, None), (2, 0.5), (3, 2.5)]
    assert not source or dead(runs) == [3]


def test_fields_that_are_not_read_are_counted_by_schema(runs: Runs, pipeline: Make, orders: Orders) -> None:
    # A merge looks at its rows more than once.
    make = partial(pipeline, LOSSY, schema_evolution="none", mode="merge", key=["id"])
    assert runs(make()) is None
    newer = [orders.write(number, AMOUNT, amount=2.5) for number in (2, 3)]
    assert "has no column amount" in (runs(make()) or "")
    # That version is the one that was read by before, so nothing is decoded in another way.
    for _ in range(2):
        assert runs(make(version="1")) is None
        orders.write(4)
    assert rows(runs) == [(number, None) for number in (1, 2, 3, 4)]
    assert orders.unread() == {f"orders.value: schema id {newer[0]}: Order.amount": 2}


def test_a_subject_of_protobuf_is_followed_too(runs: Runs, pipeline: Make, orders: Orders) -> None:
    subject = f"{orders.subject.name}-messages"

    def write(fields: str, message: bytes) -> int:
        schema = RegisteredSchema(f'syntax = "proto3"; message Order {{ {fields} }}', "PROTOBUF")
        schema_id = orders.subject.client.register_schema(subject, schema)
        orders.produce(b"\0" + schema_id.to_bytes(4, "big") + b"\0" + message)
        return schema_id

    def by(version: str) -> str:
        text = pipeline(LOSSY, version).replace('format = "avro"', 'format = "protobuf"')
        return text.replace(f"{orders.subject.name}-value", subject)

    write("int32 id = 1;", b"\x08\x02")
    newer = write("int32 id = 1; int32 amount = 2;", b"\x08\x03\x10\x07")
    assert runs(by("1")) is None
    assert orders.unread() == {f"orders.value: schema id {newer}: Order.amount": 1}
    write("int32 id = 1; int32 amount = 2;", b"\x08\x04\x10\x07")
    assert runs(by("latest")) is None
    assert rows(runs) == [(2, None), (3, None), (4, 7)]
    # The order in Avro.
    assert dead(runs) == [0]


@pytest.mark.parametrize("crash", ["after it was written", "before"])
def test_a_batch_that_is_repeated_after_a_crash_is_read_by_the_version_that_it_was_begun_with(
    runs: Runs, pipeline: Make, orders: Orders, crash: str
) -> None:
    table = runs.lake / "tables" / "orders"
    assert runs(pipeline()) is None
    shutil.copytree(table, runs.lake / "before")
    orders.write(2)
    assert runs(pipeline()) is None
    runs.forget_last_batch()
    if crash == "before":
        shutil.rmtree(table)
        shutil.move(runs.lake / "before", table)
    orders.write(3, AMOUNT, amount=2.5)
    assert runs(pipeline()) is None
    assert rows(runs) == [(1, None), (2, None), (3, 2.5)]


@pytest.mark.parametrize("behind", ["main", "dead_letters_orders"])
def test_queries_that_are_not_level_read_each_record_by_the_same_version(
    runs: Runs, pipeline: Make, orders: Orders, behind: str
) -> None:
    lossy = pipeline(source=LOSSY)
    assert runs(lossy) is None
    with runs.left_behind(behind, "orders" if behind == "main" else "orders_dead_letters"):
        orders.write(2)
        orders.produce(b"?")
        assert runs(lossy) is None
    # By the second version, which has no default, what the first has written does not decode.
    orders.write(3, STRICT, amount=2.5)
    orders.write(4)
    assert runs(lossy) is None
    assert rows(runs) == [(1, None), (2, None), (3, 2.5)]
    assert dead(runs) == [2, 4]


@pytest.mark.parametrize("source", ["", LOSSY])
def test_without_the_registry_a_pipeline_goes_on_with_the_schemas_that_it_has(
    runs: Runs, pipeline: Make, orders: Orders, source: str
) -> None:
    away = pipeline(source=source, at="http://127.0.0.1:9")
    assert (runs(away) or "") == "registry http://127.0.0.1:9: Connection refused"
    assert runs(pipeline(source=source)) is None
    orders.write(2)
    assert runs(away) is None
    newer = orders.write(3, AMOUNT, amount=2.5)
    assert f"unknown schema: sources.orders.value: id {newer}: registry" in (runs(away) or "")
    assert runs(pipeline(source=source)) is None
    assert rows(runs) == [(1, None), (2, None), (3, 2.5)]
