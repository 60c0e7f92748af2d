"""The rights that docs/console.md gives the console's user, under ACLs: they are enough to read, and not to change."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cli.commands import done, run
from tests.console.test_login import write_login
from tests.support.broker import steady_broker
from tests.support.console import Caller
from tests.support.docs import PAGES

pytestmark = pytest.mark.slow

COMMANDS = re.findall(r"^    korvet (acls add .*)$", PAGES["docs/console.md"], re.MULTILINE)
PATHS = ("cluster", "topics", "topic?name=orders", "groups", "group?name=billing", "records?topic=orders")


@pytest.mark.parametrize("given", [True, False])
def test_the_consoles_user_needs_the_rights_of_the_page(tmp_path: Path, *, given: bool) -> None:
    write_login(tmp_path)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": tmp_path / "users.toml",
        "console.client.config": tmp_path / "client.properties",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with steady_broker(tmp_path, settings=settings, listen=(), workers=1) as broker:
        at = ("-b", broker.bootstrap_of("PLAINTEXT"))
        done(run("produce", "orders", *at, given=b"one\n"))
        done(run("consume", "orders", "--group", "billing", "--exit", *at))
        Producer({"bootstrap.servers": at[1], "transactional.id": "payments"}).init_transactions()
        for command in COMMANDS if given else ():
            done(run(*shlex.split(command), *at))
        console = Caller(broker.ops_address)
        result = {path: console.get(f"/api/{path}").status == 200 for path in PATHS}
        assert result["records?topic=orders"] is result["topic?name=orders"] is given, result
        assert not given or all(result.values()), result
        topics = console.get("/api/topics").data
        assert ("orders" in str(topics)) is given
        assert ("payments" in str(console.get("/api/transactions").data)) is given
