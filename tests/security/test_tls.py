"""TLS of a listener by Kafka's settings: accepted values, refusals in one line, and the effect for clients."""

from __future__ import annotations

import contextlib
import errno
import ssl
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from korvet_core import TlsServer

from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.security import tls as tls_module
from korvet.security.session import ANONYMOUS, Principal
from korvet.security.tls import ListenerTls, NoPrincipalError, listeners_tls
from tests.support.authority import Authority, Issued, openssl
from tests.support.client_sockets import Worker

pytestmark = pytest.mark.slow

PASSWORD = "secret of the key"
SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Issued:
    return authority.issue("/CN=broker")


def tls(**settings: str) -> ListenerTls:
    """Return TLS of a listener named SSL; raises ConfigError."""
    return ListenerTls("SSL", Settings(**settings))  # type: ignore[arg-type]  # all of these are texts


class Agreed(NamedTuple):
    """What a handshake came to: the client's certificate in DER, and what the client was shown."""

    certificate: bytes | None
    version: str | None
    suite: str
    subject: str


class RefusedError(Exception):
    """The listener refuses a client, with this line of its log."""


def connect(server: ListenerTls, client: ssl.SSLContext) -> Agreed:
    """Do a handshake; raises RefusedError."""
    worker = Worker()
    owner, theirs = worker.connect(server.server)
    with client.wrap_socket(theirs, server_hostname="localhost", do_handshake_on_connect=False) as connected:
        left = True
        while not owner.events or (left and owner.events[0][0] == "open"):
            if left:
                try:
                    connected.do_handshake()
                    left = False
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    left = False
            worker.note(worker.core.turn())
        ends = dict(owner.events)
        if "open" not in ends:
            raise RefusedError(ends.get("refused") or ends.get("handshake"))
        certificate, suite = ends["open"], connected.cipher()
        assert not isinstance(certificate, str)
        assert suite
        shown = connected.getpeercert() or {}
        return Agreed(certificate, connected.version(), suite[0], str(shown["subject"]))


def inline(issued: Issued) -> dict[str, str]:
    return {
        "ssl_keystore_key": issued.key.read_text(),
        "ssl_keystore_certificate_chain": issued.certificate.read_text(),
    }


def test_a_key_store_is_a_file_or_in_the_settings_with_a_password_or_without(
    authority: Authority, broker: Issued
) -> None:
    encrypted = authority.issue("/CN=broker", password=PASSWORD)
    of_a_property = {name: text.replace("\n", " ") for name, text in inline(encrypted).items()}
    for given in (
        {"ssl_keystore_location": str(broker.store)},
        inline(broker),
        {"ssl_keystore_location": str(encrypted.store), "ssl_key_password": PASSWORD},
        {**of_a_property, "ssl_key_password": PASSWORD},
    ):
        assert connect(tls(**given), authority.client()).version == "TLSv1.3"


def test_what_cannot_be_used_is_refused_in_one_line_without_a_secret(
    authority: Authority, broker: Issued, tmp_path: Path
) -> None:
    other, encrypted = authority.issue("/CN=other"), authority.issue("/CN=broker", password=PASSWORD)
    mixed, garbage = tmp_path / "mixed.pem", tmp_path / "garbage.pem"
    mixed.write_text(other.key.read_text() + broker.certificate.read_text())
    garbage.write_text(
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n" + broker.certificate.read_text()
    )
    good = {"ssl_keystore_location": str(broker.store)}
    for given, says in (
        ({}, "TLS needs ssl.keystore.location"),
        ({"ssl_keystore_location": "/no/such"}, "ssl.keystore.location /no/such: No such file or directory"),
        ({"ssl_keystore_location": str(broker.key)}, "there is no certificate in PEM"),
        ({"ssl_keystore_location": str(broker.certificate)}, "there is no private key in PEM"),
        ({"ssl_keystore_location": str(mixed)}, "does not belong to the first certificate"),
        (
            {"ssl_keystore_location": str(garbage)},
            f"ssl.keystore.location {garbage}: the private key is none of",
        ),
        ({"ssl_keystore_location": str(encrypted.store)}, "cannot be read; is ssl.key.password right?"),
        (
            {"ssl_keystore_location": str(encrypted.store), "ssl_key_password": f"not {PASSWORD}"},
            "cannot be read; is ssl.key.password right?",
        ),
        ({**good, **inline(broker)}, "both ssl.keystore.location and ssl.keystore.key"),
        ({"ssl_keystore_key": broker.key.read_text()}, "go together: one is missing"),
        ({**good, "ssl_client_auth": "required"}, "ssl.client.auth = required needs ssl.truststore.location"),
        (
            {**good, "ssl_client_auth": "requested", "ssl_truststore_location": str(broker.key)},
            "ssl.truststore.location",
        ),
        (
            {
                **good,
                "ssl_client_auth": "required",
                "ssl_truststore_location": "/no/such",
                "ssl_truststore_certificates": "x",
            },
            "one is enough",
        ),
        ({**good, "ssl_enabled_protocols": "TLSv1.3", "ssl_protocol": "TLSv1.2"}, "leave no version of TLS"),
        ({**good, "ssl_cipher_suites": "ADH-AES128-GCM-SHA256"}, "unknown or not safe"),
        (
            {**good, "ssl_cipher_suites": "ECDHE-ECDSA-AES128-SHA256"},
            "unknown or not safe; there are TLS_AES_256_GCM",
        ),
        (
            {**good, "ssl_cipher_suites": "TLS_AES_128_GCM_SHA256", "ssl_protocol": "TLSv1.2"},
            "leave no version of TLS",
        ),
        ({**good, "ssl_principal_mapping_rules": "RULE:("}, "Invalid rule"),
    ):
        with pytest.raises(ConfigError) as caught:
            tls(**given)
        line = str(caught.value)
        assert says in line
        assert "\n" not in line
        assert PASSWORD not in line


@pytest.mark.parametrize(
    ("given", "served", "refused"),
    [
        ({}, ["TLSv1.2", "TLSv1.3"], []),
        ({"ssl_enabled_protocols": "TLSv1.2"}, ["TLSv1.2"], ["TLSv1.3"]),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ["TLSv1.3"], ["TLSv1.2"]),
        ({"ssl_protocol": "TLSv1.2"}, ["TLSv1.2"], ["TLSv1.3"]),
        ({"ssl_cipher_suites": SUITE}, ["TLSv1.2"], ["TLSv1.3"]),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, ["TLSv1.3"], ["TLSv1.2"]),
    ],
)
def test_a_client_gets_the_versions_of_the_listener(
    given: dict[str, str], served: list[str], refused: list[str], authority: Authority, broker: Issued
) -> None:
    server = tls(ssl_keystore_location=str(broker.store), **given)
    for version in (*served, *refused):
        client = authority.client()
        client.minimum_version = client.maximum_version = ssl.TLSVersion[version.replace(".", "_")]
        if version in refused:
            with pytest.raises(RefusedError):
                connect(server, client)
        else:
            assert connect(server, client).version == version


@pytest.mark.parametrize(
    ("name", "agreed"),
    [
        (SUITE, ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305")),
        ("TLS_CHACHA20_POLY1305_SHA256", ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256")),
    ],
)
def test_cipher_suites_are_limited_by_their_names_in_java_and_in_openssl(
    name: str, agreed: tuple[str, str], authority: Authority, broker: Issued
) -> None:
    limited = tls(ssl_keystore_location=str(broker.store), ssl_cipher_suites=name)
    assert connect(limited, authority.client())[1:3] == agreed


def test_every_suite_may_be_given_by_its_name_in_java_and_in_openssl(broker: Issued) -> None:
    """OpenSSL says which are of one name: in its list IANA's stands before its own."""
    lines = openssl("ciphers", "-stdname", "-s", "ALL").splitlines()
    names = {line.split()[0]: line.split()[2] for line in lines}
    assert len(TlsServer.all_suites()) == 9
    for name in TlsServer.all_suites():
        for given in (name, names[name]):
            tls(ssl_keystore_location=str(broker.store), ssl_cipher_suites=given)


@pytest.mark.parametrize(
    "kind",
    [
        ("ec", "-pkeyopt", "ec_paramgen_curve:P-521"),
        ("rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"),
        ("rsa", "-pkeyopt", "rsa_keygen_bits:1024"),
        ("ed448",),
    ],
)
@pytest.mark.parametrize("password", ["", PASSWORD])
def test_a_key_of_a_kind_that_clients_cannot_have_is_refused_with_those_that_they_can(
    kind: tuple[str, ...], password: str, tmp_path: Path
) -> None:
    key, certificate, store = tmp_path / "key", tmp_path / "certificate", tmp_path / "store.pem"
    secured = ("-passout", f"pass:{password}") if password else ("-nodes",)
    made = ("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=broker")
    openssl("req", "-x509", "-newkey", *kind, *secured, *made)
    store.write_text(key.read_text() + certificate.read_text())
    with pytest.raises(ConfigError) as caught:
        tls(ssl_keystore_location=str(store), ssl_key_password=password)
    kinds = "RSA (2048 to 4096 bits), EC (P-256, P-384) and Ed25519"
    assert (
        str(caught.value)
        == f"listener SSL: ssl.keystore.location {store}: the private key is none of {kinds}"
    )


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (("ec", "-pkeyopt", "ec_paramgen_curve:P-384"), ""),
        (("ec", "-pkeyopt", "ec_paramgen_curve:P-384"), "-traditional"),
        (("rsa", "-pkeyopt", "rsa_keygen_bits:2048"), ""),
        (("rsa", "-pkeyopt", "rsa_keygen_bits:2048"), "-traditional"),
        (("ed25519",), ""),
    ],
)
@pytest.mark.parametrize("cipher", ["", "-aes256", "-des3"])
def test_keys_are_taken_in_every_form(kind: tuple[str, ...], form: str, cipher: str, tmp_path: Path) -> None:
    key, certificate, store = tmp_path / "key", tmp_path / "certificate", tmp_path / "store.pem"
    made = ("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=broker")
    openssl("req", "-x509", "-newkey", *kind, "-nodes", *made, "-addext", "subjectAltName=DNS:localhost")
    flags = [form] if form else []
    if cipher:
        flags += [cipher, "-passout", f"pass:{PASSWORD}"]
    store.write_text(openssl("pkey", "-in", str(key), *flags) + certificate.read_text())
    client = ssl.create_default_context(cafile=str(certificate))
    server = tls(ssl_keystore_location=str(store), ssl_key_password=PASSWORD)
    assert connect(server, client).subject == "((('commonName', 'broker'),),)"


def test_a_check_leaves_no_descriptor_and_no_thread_in_the_process_that_forks(
    authority: Authority, broker: Issued
) -> None:
    def held() -> tuple[int, int]:
        own = Path("/proc/self")
        return len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))

    encrypted = authority.issue("/CN=broker", password=PASSWORD)
    before = held()
    kept = [
        mutual(authority, broker),
        tls(ssl_keystore_location=str(encrypted.store), ssl_key_password=PASSWORD),
    ]
    assert held() == before
    for server in kept:
        assert server.expires_at > time.time()


def mutual(authority: Authority, broker: Issued, client_auth: str = "required", **more: str) -> ListenerTls:
    return tls(
        ssl_keystore_location=str(broker.store),
        ssl_truststore_location=str(authority.certificate),
        ssl_client_auth=client_auth,
        **more,
    )


def test_a_clients_certificate_is_its_principal(authority: Authority, broker: Issued) -> None:
    alice = authority.client(authority.issue("/C=DE/O=Korvet/CN=alice", hosts=""))
    rules = "RULE:^CN=([^,]+),.*$/$1/U"
    for client_auth in ("required", "requested"):
        server = mutual(authority, broker, client_auth)
        certificate = connect(server, alice).certificate
        assert server.principal(certificate) == Principal("User", "CN=alice,O=Korvet,C=DE")
        for given, user in ((rules, "ALICE"), ("RULE:^CN=bob$/bob/", None)):
            mapped = mutual(authority, broker, client_auth, ssl_principal_mapping_rules=given)
            if user:
                assert mapped.principal(certificate) == Principal("User", user)
            else:
                with pytest.raises(NoPrincipalError, match="matches CN=alice,O=Korvet,C=DE"):
                    mapped.principal(certificate)


def test_a_client_without_a_certificate_is_anonymous_or_refused(authority: Authority, broker: Issued) -> None:
    for server in (mutual(authority, broker, "requested"), mutual(authority, broker, "none")):
        assert connect(server, authority.client()).certificate is None
        assert server.principal(None) is ANONYMOUS
    with pytest.raises(RefusedError, match=r"^peer did not return a certificate$"):
        connect(mutual(authority, broker), authority.client())


def test_a_certificate_may_be_trusted_by_itself_as_in_java(authority: Authority, broker: Issued) -> None:
    alice = authority.issue("/CN=alice")
    server = tls(
        ssl_keystore_location=str(broker.store),
        ssl_truststore_certificates=alice.certificate.read_text().replace("\n", " "),
        ssl_client_auth="required",
    )
    connect(server, authority.client(alice))
    with pytest.raises(RefusedError, match="unable to get local issuer certificate"):
        connect(server, authority.client(authority.issue("/CN=bob")))


def test_clients_that_log_in_show_a_certificate_only_if_their_listener_says_so(
    authority: Authority, broker: Issued
) -> None:
    """KIP-684. As whom they log in counts, not what the certificate says."""
    common = {
        "ssl_keystore_location": str(broker.store),
        "ssl_truststore_location": str(authority.certificate),
        "ssl_client_auth": "required",
    }
    for overrides, refusal in (
        ({}, None),
        ({"SASL_SSL": {"ssl_client_auth": "required"}}, "peer did not return a certificate"),
    ):
        settings = Settings(**common, overrides=overrides)  # type: ignore[arg-type]  # all of these are texts
        server = ListenerTls("SASL_SSL", settings)
        with pytest.raises(RefusedError, match=refusal) if refusal else contextlib.nullcontext():
            connect(server, authority.client())
        der = ssl.PEM_cert_to_DER_cert(broker.certificate.read_text())
        assert server.principal(der) is ANONYMOUS


def test_listeners_have_tls_by_their_protocol_and_with_their_own_settings(
    authority: Authority, broker: Issued
) -> None:
    settings = Settings(
        ssl_keystore_location="/no/such",
        overrides={
            "SSL": {"ssl_keystore_location": str(broker.store)},
            "B": {"ssl_keystore_location": "/other"},
        },
        listener_security_protocol_map="SSL:SSL,A:PLAINTEXT,B:SASL_SSL",
    )
    assert list(listeners_tls(["A", "SSL"], settings)) == ["SSL"]
    with pytest.raises(ConfigError, match=r"^listener B: ssl\.keystore\.location /other: No such file"):
        listeners_tls(["A", "SSL", "B"], settings)


def test_a_certificate_is_tried_again_until_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without descriptors, which clients can bring about, must not leave a certificate that ends in use."""
    authority = Authority(tmp_path / "authority")
    store = tmp_path / "store.pem"
    authority.issue("/CN=first").store.rename(store)
    server = tls(ssl_keystore_location=str(store))
    former = server.server
    authority.issue("/CN=second").store.rename(store)
    with monkeypatch.context() as without:
        without.setattr(tls_module, "_read", _no_descriptors)
        server.refresh()
    assert server.server is former
    server.refresh()
    assert server.server is not former


def _no_descriptors(_setting: str, _path: str) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_certificate_that_was_replaced_is_taken_up_and_one_that_cannot_be_used_is_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store, trust = tmp_path / "store.pem", tmp_path / "trust.pem"

    def replace(path: Path, text: str) -> None:
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    replace(store, authority.issue("/CN=first").store.read_text())
    replace(trust, authority.certificate.read_text())
    server = tls(
        ssl_keystore_location=str(store), ssl_truststore_location=str(trust), ssl_client_auth="requested"
    )

    def subject() -> str:
        return connect(server, authority.client()).subject

    first, ends = server.server, server.expires_at
    server.refresh()
    assert server.server is first
    assert "first" in subject()
    replace(store, authority.issue("/CN=second", days=60).store.read_text())
    server.refresh()
    assert "second" in subject()
    assert server.expires_at > ends
    for broken in ("nothing", authority.issue("/CN=third", password=PASSWORD).store.read_text()):
        replace(store, broken)
        server.refresh()
        assert "second" in subject()
    store.unlink()
    server.refresh()
    assert "second" in subject()
    replace(store, authority.issue("/CN=fourth").store.read_text())
    replace(trust, Authority(tmp_path / "other").certificate.read_text())
    server.refresh()
    assert "fourth" in subject()
    with pytest.raises(RefusedError, match="certificate verify failed"):
        connect(server, authority.client(authority.issue("/CN=alice")))
    kept, again = (
        caplog.messages.count(line)
        for line in (
            "the changed certificate cannot be used; the former one stays in use",
            "certificate read again",
        )
    )
    assert (kept, again) == (3, 2)
    assert PASSWORD not in repr([record.__dict__ for record in caplog.records])


def test_the_first_certificate_of_a_chain_to_end_counts(authority: Authority, tmp_path: Path) -> None:
    short, long = authority.issue("/CN=broker", days=5), authority.issue("/CN=broker", days=900)
    store = tmp_path / "store.pem"
    store.write_text(long.store.read_text() + short.certificate.read_text())
    assert (
        tls(ssl_keystore_location=str(store)).expires_at
        == tls(ssl_keystore_location=str(short.store)).expires_at
    )
