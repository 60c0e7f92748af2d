"""What `openssl s_client` gets of a listener with TLS: each version, suite and trick that a scanner would try."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.authority import Authority, openssl
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until

DONE = re.compile(r"^(?:New, |Reused, )(\S+), Cipher is (\S+)", re.MULTILINE)
RSA = ("-newkey", "rsa:2048")


class Site:
    """A broker with certificates of both kinds, at listeners EC and RSA, and one that wants a certificate."""

    def __init__(self, broker: Broker, authority: Authority) -> None:
        self.broker, self.authority = broker, authority

    def s_client(self, *flags: str, listener: str = "EC", typed: bytes = b"Q\n") -> str:
        """Run s_client and return what it printed, however it ended."""
        host, port = self.broker.at(listener)
        command = [
            "openssl",
            "s_client",
            "-connect",
            f"{host}:{port}",
            "-CAfile",
            str(self.authority.certificate),
            *flags,
        ]
        done = subprocess.run(command, input=typed, capture_output=True, timeout=60, check=False)
        return (done.stdout + done.stderr).decode(errors="replace")

    def agreed(self, *flags: str, listener: str = "EC") -> tuple[str, str] | None:
        """Return version and suite of a handshake, None if there was none."""
        result = DONE.search(self.s_client(*flags, listener=listener))
        return (result[1], result[2]) if result and result[2] != "(NONE)" else None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    authority = Authority(directory / "ca")
    alone = directory / "rsa.pem"
    made = (
        "-keyout",
        str(directory / "rsa.key"),
        "-out",
        str(directory / "rsa.crt"),
        "-subj",
        "/CN=localhost",
    )
    openssl("req", "-x509", *RSA, "-nodes", "-days", "2", *made)
    alone.write_text((directory / "rsa.key").read_text() + (directory / "rsa.crt").read_text())
    settings = {
        "listeners": "EC://127.0.0.1:0,RSA://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "EC:SSL,RSA:SSL,MUTUAL:SSL",
        "ssl.keystore.location": authority.issue("/CN=broker").store,
        "listener.name.rsa.ssl.keystore.location": alone,
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.truststore.location": authority.certificate,
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with korvet_broker(directory, *flags, workers=1, listen=()) as broker:
        pids = broker.worker_pids()
        yield Site(broker, authority)
        assert broker.worker_pids() == pids
        assert "Traceback" not in broker.log()


def test_versions(site: Site) -> None:
    for flag, served in (("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
        assert (site.agreed(flag, "-cipher", "ALL:@SECLEVEL=0") is not None) is served, flag


@pytest.mark.parametrize("listener", ["EC", "RSA"])
def test_suites_of_tls_1_2_are_those_with_forward_secrecy_and_no_other(site: Site, listener: str) -> None:
    every = openssl("ciphers", "-tls1_2", "ALL:COMPLEMENTOFALL:@SECLEVEL=0").strip().split(":")
    offered = [name for name in every if not name.startswith("TLS_")]
    assert len(offered) > 100
    taken = {
        name
        for name in offered
        if site.agreed("-tls1_2", "-cipher", f"{name}:@SECLEVEL=0", listener=listener)
    }
    kind = "ECDSA" if listener == "EC" else "RSA"
    ciphers = ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    assert taken == {f"ECDHE-{kind}-{cipher}" for cipher in ciphers}


@pytest.mark.parametrize(
    "suite", ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]
)
def test_suites_of_tls_1_3(site: Site, suite: str) -> None:
    assert site.agreed("-tls1_3", "-ciphersuites", suite) == ("TLSv1.3", suite)
    assert site.agreed("-tls1_3", "-ciphersuites", "TLS_AES_128_CCM_8_SHA256") is None


@pytest.mark.parametrize(
    ("group", "served"),
    [
        ("X25519", True),
        ("P-256", True),
        ("P-384", True),
        ("P-521", False),
        ("X448", False),
        ("ffdhe2048", False),
    ],
)
def test_groups(site: Site, group: str, *, served: bool) -> None:
    assert (site.agreed("-groups", group) is not None) is served


def test_the_certificate_is_verified_by_its_names(site: Site) -> None:
    for host in ("localhost", "elsewhere"):
        said = site.s_client("-verify_return_error", "-verify_hostname", host)
        assert ("Verification: OK" in said) is (host == "localhost"), said
    assert "Verify return code: 0 (ok)" in site.s_client("-verify_return_error", "-verify_ip", "127.0.0.1")


def test_renegotiation_is_refused(site: Site) -> None:
    said = site.s_client("-tls1_2", typed=b"R\n")
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said
    assert "Secure Renegotiation IS supported" in said


def test_nothing_is_compressed(site: Site) -> None:
    assert "Compression: NONE" in site.s_client("-tls1_2", "-comp")


def test_a_version_is_not_lowered_by_somebody_in_between(site: Site) -> None:
    assert "inappropriate fallback" in site.s_client("-tls1_2", "-fallback_scsv")


def test_new_keys_are_taken_and_given(site: Site) -> None:
    """The bytes that follow, a frame of a size that cannot be, end the connection: they have been decrypted."""
    host, port = site.broker.at("EC")
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_3", "-quiet", "-no_ign_eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stderr
        for typed in ("k\n", "K\n"):
            client.stdin.write(typed)
            client.stdin.flush()
            while client.stderr.readline() != "KEYUPDATE\n":
                assert client.poll() is None
        client.stdin.write("x" * 10 + "\n")
        client.stdin.flush()
        wait_until(lambda: "a frame of 2021161080 bytes is above the limit" in site.broker.log(), "the frame")
        client.kill()


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_no_early_data_and_no_resumption(site: Site, version: str, tmp_path: Path) -> None:
    kept = tmp_path / "session"
    assert "Max Early Data: " not in site.s_client(version, "-sess_out", str(kept))
    assert not kept.exists() or "Reused" not in site.s_client(version, "-sess_in", str(kept))


def test_handshakes_in_many_small_records(site: Site) -> None:
    assert site.agreed("-tls1_3", "-max_send_frag", "512", "-split_send_frag", "512") is not None


def test_any_server_name_and_protocol_gets_the_same(site: Site) -> None:
    names = ("elsewhere", "x" * 63, ".".join(["x" * 63] * 3), "under_score", "dot.")
    for flags in (
        *(("-servername", name) for name in names),
        ("-noservername",),
        ("-alpn", "h2,http/1.1"),
        ("-status",),
    ):
        assert site.agreed(*flags) is not None, flags


@pytest.mark.parametrize("name", ["x" * 64, "a..b", "-x"])
def test_a_server_name_that_no_host_can_have_is_refused(site: Site, name: str) -> None:
    assert "alert illegal parameter" in site.s_client("-servername", name)


def test_certificates_of_clients(site: Site, tmp_path: Path) -> None:
    alice, late = site.authority.issue("/CN=alice"), site.authority.issue("/CN=alice", days=-1)
    stranger = Authority(tmp_path, "Other CA").issue("/CN=alice")
    for identity, version, says in (
        (alice, "-tls1_3", ""),
        (alice, "-tls1_2", ""),
        (late, "-tls1_3", "certificate expired"),
        (late, "-tls1_2", "certificate expired"),
        (stranger, "-tls1_3", "unknown ca"),
        (stranger, "-tls1_2", "unknown ca"),
        (None, "-tls1_3", "certificate required"),
        (None, "-tls1_2", "certificate required"),
    ):
        flags = ("-cert", str(identity.certificate), "-key", str(identity.key)) if identity else ()
        said = site.s_client(version, "-ign_eof", *flags, listener="MUTUAL", typed=b"x" * 10)
        assert (f"alert {says}" in said) if says else "alert" not in said, said
