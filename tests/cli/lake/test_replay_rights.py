"""`korvet lake replay` by a user who logs in over TLS and has just the rights that it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from korvet.admin.acls import AclBinding, AclBindingFilter
from korvet.admin.types import settled
from korvet.lake.source import SourceTopic
from korvet.protocol.types import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
    ScramMechanism,
)
from tests.cli.commands import done, failed, korvet
from tests.support.archives import where
from tests.support.authority import Authority
from tests.support.docs import PAGES
from tests.support.replaying import Stage, stage_in
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client
from tests.support.tutorial import section_of

USER, PASSWORD = "alice", "the-password-of-alice-in-this-test"
RECORDS = 400


class Secured(NamedTuple):
    """A broker with an authorizer, where who has not logged in is a super user, and how USER logs in."""

    stage: Stage
    bootstrap: str
    config: Path

    def line(self, source: SourceTopic, target: SourceTopic, *arguments: str) -> list[str]:
        flags = ("-b", self.bootstrap, "--command-config", str(self.config))
        place = where(self.stage.topics)
        return ["lake", "replay", *place, *flags, source.name, "--to", target.name, *arguments]

    def allow(self, *rights: AclBinding) -> None:
        settled(self.stage.admin.acls.create(rights))

    def take_away(self, right: AclBinding) -> None:
        result = settled(self.stage.admin.acls.delete([AclBindingFilter(*right)]))
        assert list(result.values()) == [[right]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "ca")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("/CN=broker").store,
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "connection.failed.authentication.delay.ms": 10,
    }
    given = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    file = directory / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.certificate}\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{USER}" password="{PASSWORD}";\n'
    )
    with stage_in(directory, *given, listen=()) as stage:
        host, port = stage.broker.at("SASL_SSL")
        with Client(stage.broker.at("PLAINTEXT")) as admin:
            set_password(admin, USER, PASSWORD, ScramMechanism.SCRAM_SHA_512)
        yield Secured(stage, f"{host}:{port}", file)
        assert "Traceback" not in stage.broker.log()


@pytest.fixture
def source(secured: Secured) -> Iterator[SourceTopic]:
    """Give a topic; in the end USER has no rights any more."""
    topic = secured.stage.make()
    secured.stage.topics.produce(topic.partitions[0], *(b"%d" % at for at in range(RECORDS)))
    yield topic
    settled(secured.stage.admin.acls.delete([AclBindingFilter()]))


def right(kind: AclResourceType, name: str, operation: AclOperation, *, prefix: bool = False) -> AclBinding:
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    return AclBinding(kind, pattern, name, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)


def rights(source: SourceTopic, target: SourceTopic) -> dict[str, AclBinding]:
    """Return the rights that the page names."""
    return {
        "read the source": right(AclResourceType.TOPIC, source.name, AclOperation.READ),
        "write the target": right(AclResourceType.TOPIC, target.name, AclOperation.WRITE),
        "read the target": right(AclResourceType.TOPIC, target.name, AclOperation.READ),
        "commit": right(
            AclResourceType.GROUP, f"korvet-replay.{source.name}.", AclOperation.READ, prefix=True
        ),
    }


def commands(source: SourceTopic, target: SourceTopic) -> list[list[str]]:
    """Return the page's commands for topics of the tests."""
    section = section_of(PAGES["docs/lake/security.md"], "Replays")
    return [
        line.replace("clicks-again", target.name).replace("clicks", source.name).split()
        for line in re.findall(r"^    korvet (.*)$", section, re.MULTILINE)
    ]


def test_a_transactional_replay_needs_the_right_to_its_transactional_id(
    secured: Secured, source: SourceTopic
) -> None:
    stage, target = secured.stage, secured.stage.make()
    needed = rights(source, target)
    secured.allow(*(item for name, item in needed.items() if name != "read the target"))
    line = secured.line(source, target, "--transactional")
    said = failed(korvet(*line))
    expected = rf"brokers give no producer id to write {target.name}: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert re.search(f"^Error: {expected}", said, re.MULTILINE), said
    done(korvet(*commands(source, target)[-1], "-b", stage.broker.bootstrap))
    done(korvet(*line))
    assert stage.contents(target) == stage.produced(source)


def test_the_rights_of_the_page_are_all_that_a_replay_needs(secured: Secured, source: SourceTopic) -> None:
    stage, target = secured.stage, secured.stage.make()
    *rights_of, replay, _ = commands(source, target)
    for item in rights_of:
        done(korvet(*item, "-b", stage.broker.bootstrap))
    assert replay[:8] == [
        *("lake", "replay", "-b", "broker.example:9094", "--command-config", "alice.properties"),
        *("--lake", "./lake"),
    ]
    given = secured.line(source, target, "--json")
    assert replay[8:] == given[-4:-1]
    [partition] = json.loads(done(korvet(*given)))["partitions"]
    assert partition["records"] == RECORDS
    assert stage.contents(target) == stage.produced(source)


def test_each_right_that_is_missing_is_one_clear_error(secured: Secured, source: SourceTopic) -> None:
    stage, target, other = secured.stage, secured.stage.make(), secured.stage.make()
    needed = rights(source, target)
    cluster = right(AclResourceType.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS)

    def refused_until(*given: AclBinding, says: str) -> None:
        said = failed(korvet(*secured.line(source, target)))
        assert re.search(f"^Error: {says}", said, re.MULTILINE), said
        assert stage.contents(target) == []
        secured.allow(*given)

    topics = (needed["read the source"], needed["read the target"])
    refused_until(*topics, says=r"topic \S+: TOPIC_AUTHORIZATION_FAILED")
    refused_until(needed["commit"], says=r"group \S+ does not give the progress of the replay: GROUP_AUTHOR")
    elsewhere = right(AclResourceType.TOPIC, other.name, AclOperation.WRITE)
    refused_until(elsewhere, says=r"brokers give no producer id to write \S+: CLUSTER_AUTHORIZATION_FAILED")
    refused_until(needed["write the target"], says=r"\S+:0 did not take offsets 0 to 399 .*: TOPIC_AUTHORI")
    # Nothing has come: whether that is certain depends on a config of the brokers.
    secured.take_away(needed["read the target"])
    refused_until(needed["read the target"], says=r".*: \S+ does not say which records it has: TOPIC_AUTHOR")
    refused_until(cluster, says=r"brokers do not say how long they remember .*: CLUSTER_AUTHORIZATION_FAILED")
    assert korvet(*secured.line(source, target)).returncode == 0
    assert stage.contents(target) == stage.produced(source)
