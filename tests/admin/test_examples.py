"""The examples in the admin client's docstrings run as they stand, but for the address of the broker."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest

import korvet.admin
from korvet.admin import AdminClient, TopicPartition
from korvet.admin.client import PORT_DEFAULT
from tests.support.broker import Broker
from tests.support.topic_client import Client

MODULES = [
    "",
    ".client",
    ".topics",
    ".topic_id",
    ".configs",
    ".partitions",
    ".cluster",
    ".groups",
    ".offsets",
]
DOCUMENTED = f"127.0.0.1:{PORT_DEFAULT}"


@pytest.mark.parametrize("module", MODULES)
def test_each_example_prints_what_it_says(
    broker: Broker, client: Client, admin: AdminClient, module: str
) -> None:
    found: ModuleType = importlib.import_module(f"{korvet.admin.__name__}{module}")
    names = {"admin": admin, "TopicPartition": TopicPartition, **vars(korvet.admin)}
    examples = [each for each in doctest.DocTestFinder().find(found, extraglobs=names) if each.examples]
    assert examples
    client.create("orders")
    client.append("orders", *[b"value"] * 50)
    printed: list[str] = []
    try:
        for test in examples:
            admin.offsets.alter("billing", {TopicPartition("orders", 0): 0})
            for example in test.examples:
                example.source = example.source.replace(DOCUMENTED, broker.bootstrap)
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=printed.append)
    finally:
        client.delete("orders")
    assert printed == []
