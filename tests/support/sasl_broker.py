"""A broker with a SASL listener for each mechanism, for clients of others, and its users."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from korvet.protocol.types import ScramMechanism
from tests.support.broker import Broker, korvet_broker
from tests.support.identity_provider import AUDIENCE, ISSUER, Provider
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client

USER, PASSWORD = "alice", "alice-secret, with = and ü"
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms by which USER logs in with PASSWORD."""


@contextlib.contextmanager
def sasl_broker(
    directory: Path,
    provider: Provider | None = None,
    reauth_ms: int = 0,
    more: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Run the broker, with the listeners ADMIN (no SASL) and SASL_PLAINTEXT, and `more` settings.

    USER has PASSWORD.
    """
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,ADMIN:PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join([*PASSWORDS, *(["OAUTHBEARER"] if provider else [])]),
        "connections.max.reauth.ms": str(reauth_ms),
        "group.initial.rebalance.delay.ms": "0",
    }
    if provider is not None:
        settings |= {
            "sasl.oauthbearer.jwks.endpoint.url": provider.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
    settings |= more or {}
    with korvet_broker(directory, settings=settings, listen=(), workers=2) as running:
        with Client(running.at("ADMIN")) as admin:
            set_password(admin, USER, PASSWORD, ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        yield running
        assert "Traceback" not in running.log()
        assert PASSWORD not in running.log()


def bootstrap(broker: Broker) -> str:
    """Return where clients log in."""
    return broker.bootstrap_of("SASL_PLAINTEXT")
