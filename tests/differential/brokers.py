"""The brokers that are compared, with the same settings: a listener with and one without logins, and ACLs."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench import peers
from tests.support.processes import free_port

USER, PASSWORD = "alice", "alice-secret"
SETTINGS = (
    "broker.id=1",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    f"super.users=User:ANONYMOUS;User:{USER}",
    "log.retention.ms=-1",
    "group.initial.rebalance.delay.ms=0",
)
JAAS = "listener.name.sasl_plaintext.{0}.sasl.jaas.config=org.apache.kafka.common.security.{1} required{2};"


class _Secured(peers.Peer):
    login_port = 0

    def _listeners(self) -> list[str]:
        self.login_port = self.login_port or free_port()
        login = f"SASL_PLAINTEXT://127.0.0.1:{self.login_port}"
        return [f"listeners=PLAINTEXT://{self.bootstrap},{login}", *SETTINGS]


class Kafka(_Secured, peers.Kafka):
    """Apache Kafka in 512 MiB, with few partitions of its internal topics."""

    HEAP = ("-Xmx512m", "-Xms256m")

    def _listeners(self) -> list[str]:
        plain = f' user_{USER}="{PASSWORD}"'
        return [
            *super()._listeners(),
            JAAS.format("plain", "plain.PlainLoginModule", plain),
            *(JAAS.format(f"scram-sha-{bits}", "scram.ScramLoginModule", "") for bits in (256, 512)),
            "offsets.topic.num.partitions=1",
            "transaction.state.log.num.partitions=1",
            "share.coordinator.state.topic.num.partitions=1",
        ]


class Korvet(_Secured, peers.KorvetBatch):
    """Korvet in `batch`, whose offsets are dense as Kafka's."""

    name = "korvet"

    def _listeners(self) -> list[str]:
        users = self.directory / "users.toml"
        users.write_text(f'{USER} = "{PASSWORD}"\n')
        users.chmod(0o600)
        return [*super()._listeners(), "storage.format=batch", f"sasl.plain.users.file={users}"]


def both(folder: Path) -> tuple[Kafka, Korvet]:
    """Return Kafka and Korvet, not started."""
    return Kafka(folder), Korvet(folder)
