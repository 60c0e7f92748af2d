"""What a start and `korvet doctor` find of certificates and private keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.config.listeners import wanted_listeners
from korvet.config.settings import Settings
from korvet.server.finding import Finding, Level
from korvet.server.supervisor import checks
from tests.doctor.test_doctor import bad, settings
from tests.support.authority import Authority


def tls(given: Settings) -> Iterator[Finding]:
    return checks.tls(given, wanted_listeners(given.listeners, given.listen))


@pytest.mark.slow
def test_certificates_that_cannot_be_used_expire_soon_or_whose_key_all_can_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    names = ("GOOD", "SOON", "LATE", "NONE")
    stores = {
        name: authority.issue("/CN=broker", days=days).store
        for name, days in zip(names, (30, 5, -1), strict=False)
    }
    for store in stores.values():
        store.chmod(0o600)
    given = {
        f"listener.name.{name.lower()}.ssl.keystore.location": str(store) for name, store in stores.items()
    }
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for port, name in enumerate(names, 1))
    protocols = ",".join(f"{name}:SSL" for name in names)
    given |= {"listeners": listeners, "listener.security.protocol.map": protocols}
    result = {item.what: item for item in tls(settings(**given))}
    assert {what: item.level for what, item in result.items()} == {
        "TLS (GOOD)": Level.OK,
        "TLS (SOON)": Level.WARNING,
        "TLS (LATE)": Level.ERROR,
        "TLS (NONE)": Level.ERROR,
    }
    assert result["TLS (GOOD)"].said == "the certificate is valid for 29 days"
    assert result["TLS (SOON)"].said == "the certificate expires in 4 days"
    assert "ssl.keystore.location" in result["TLS (NONE)"].said
    stores["GOOD"].chmod(0o644)
    named = bad(tls(settings(**given)))
    assert named["ssl.keystore.location (GOOD)"].said == "every user of this machine can read the private key"
    assert list(tls(Settings())) == []


@pytest.mark.slow
def test_a_key_store_of_the_ops_port_that_cannot_be_used_expires_soon_or_that_all_can_read(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)

    def result(store: Path, listen: str = "127.0.0.1:9093") -> list[tuple[str, Level, str]]:
        given = settings(ops__ssl__keystore__location=str(store), ops__listen=listen)
        return [(item.what, item.level, item.said) for item in tls(given)]

    good, other, soon = (authority.issue("/CN=broker", days=days) for days in (30, 30, 5))
    for item in (good, soon):
        item.store.chmod(0o600)
    assert result(good.store) == [("TLS (ops.listen)", Level.OK, "the certificate is valid for 29 days")]
    assert result(soon.store) == [("TLS (ops.listen)", Level.WARNING, "the certificate expires in 4 days")]
    assert result(good.store, listen="") == []
    good.store.chmod(0o644)
    assert result(good.store)[1] == (
        "ops.ssl.keystore.location",
        Level.WARNING,
        "every user of this machine can read the private key",
    )
    good.store.write_text(other.key.read_text() + good.certificate.read_text())
    for store, said in (
        (good.store, "does not belong to the first certificate"),
        (tmp_path / "none", "No such"),
    ):
        [(what, level, problem)] = result(store)
        assert (what, level) == ("TLS (ops.listen)", Level.ERROR)
        assert problem.startswith(f"ops.ssl.keystore.location {store}: ")
        assert said in problem
