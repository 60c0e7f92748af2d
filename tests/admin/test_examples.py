"""The examples in the admin client's docstrings run as they stand, but for the address of the broker."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from functools import cached_property
from types import ModuleType

import pytest

import korvet.admin
from korvet.admin.client import AdminClient
from korvet.admin.connection import PORT_DEFAULT
from korvet.admin.types import Resource, TopicPartition, settled
from tests.support.docs import PAGES
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client

MODULES = "client topics types configs cluster groups offsets records transactions users quotas"
PAGE = PAGES["docs/admin-python.md"]
DOCUMENTED = f"127.0.0.1:{PORT_DEFAULT}"


@pytest.mark.parametrize("module", ["", *map(".{}".format, MODULES.split())])
def test_each_example_prints_what_it_says(
    broker: InProcessBroker, client: Client, admin: AdminClient, module: str
) -> None:
    result: ModuleType = importlib.import_module(f"{korvet.admin.__name__}{module}")
    names = {"admin": admin, "TopicPartition": TopicPartition, **vars(korvet.admin)}
    examples = [item for item in doctest.DocTestFinder().find(result, extraglobs=names) if item.examples]
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


@pytest.mark.slow
def test_the_example_of_the_page_makes_what_it_says(broker: InProcessBroker, admin: AdminClient) -> None:
    example = PAGE.partition("```python\n")[2].partition("```")[0].replace(DOCUMENTED, broker.bootstrap)
    assert broker.bootstrap in example
    printed: list[str] = []
    try:
        for _ in range(2):  # topics that are there already do it no harm
            ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
            printed = ran.stdout.splitlines()
        topics = settled(admin.topics.describe(["invoices", "audit"]))
        assert printed == [
            f"invoices {topics['invoices'].topic_id} {[0] * 6}",
            f"audit {topics['audit'].topic_id} [0]",
        ]
        configs = settled(admin.configs.describe([Resource.topic("audit")]))[Resource.topic("audit")]
        assert configs["cleanup.policy"].value == "delete,compact"
    finally:
        admin.topics.delete(["invoices", "audit"])


def test_the_page_names_every_request() -> None:
    rows = re.findall(r"^\| `admin\.(\w+)` \| ([\w, ]+) \|", PAGE, re.MULTILINE)
    subjects = [name for name, part in vars(AdminClient).items() if isinstance(part, cached_property)]
    with AdminClient(DOCUMENTED) as unconnected:
        parts = {name: type(getattr(unconnected, name)) for name in subjects}
    assert {name: set(requests.split(", ")) for name, requests in rows} == {
        name: {request for request in vars(part) if not request.startswith("_")}
        for name, part in parts.items()
    }
