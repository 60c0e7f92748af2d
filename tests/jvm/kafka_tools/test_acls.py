"""kafka-acls: it adds, lists and removes ACLs, and they decide what Kafka's other tools may do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jvm import jars
from tests.jvm.tools import AtBroker, kafka_tools
from tests.support.sasl_broker import PASSWORD, USER, bootstrap, sasl_broker

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ALICE = f"User:{USER}"
PREFIXED = ("--topic", "bills", "--resource-pattern-type", "prefixed")
LOGIN = f"""security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="{USER}" password="{PASSWORD}";
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AtBroker, AtBroker]]:
    """Give the tools at the listener of administrators, and at the one where users log in."""
    jars.prepare()
    with (
        sasl_broker(tmp_path_factory.mktemp("broker"), more=AUTHORIZER) as broker,
        kafka_tools(tmp_path_factory.mktemp("java")) as java,
    ):
        yield AtBroker(java, broker.bootstrap_of("ADMIN")), AtBroker(java, bootstrap(broker))


def test_acls_are_added_listed_and_removed(both: tuple[AtBroker, AtBroker], tmp_path: Path) -> None:
    admin, user = both
    login = tmp_path / "alice.properties"
    login.write_text(LOGIN, encoding="latin-1")  # as Java reads properties
    of_alice = ("--command-config", str(login))
    create = ("--create", "--topic", "bills-2026", *of_alice)
    assert "TopicAuthorizationException" in user.refused("kafka-topics", *create)
    admin.done("kafka-acls", "--add", "--allow-principal", ALICE, "--producer", *PREFIXED)
    assert f"principal={ALICE}, host=*, operation=CREATE, permissionType=ALLOW" in admin.done(
        "kafka-acls", "--list", *PREFIXED
    )
    assert "Created topic bills-2026" in user.done("kafka-topics", *create)
    assert user.done("kafka-topics", "--list", *of_alice).split() == ["bills-2026"]
    admin.done(
        "kafka-acls", "--add", "--deny-principal", ALICE, "--operation", "describe", "--topic", "bills-2026"
    )
    assert user.done("kafka-topics", "--list", *of_alice).split() == []
    for resource in (PREFIXED, ("--topic", "bills-2026")):
        admin.done("kafka-acls", "--remove", "--force", *resource)
    assert "principal=" not in admin.done("kafka-acls", "--list")
