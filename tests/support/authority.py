"""A certificate authority of a test's own, by openssl, as docs/security.md has it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

HERE = "DNS:localhost,IP:127.0.0.1"


class Issued(NamedTuple):
    """A certificate, its private key, and both in one file, a key store as Korvet takes it."""

    certificate: Path
    key: Path
    store: Path


class Authority:
    """A CA whose files are in `directory`; `certificate` is what its clients trust."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate, self._key = directory / "ca.pem", directory / "ca.key"
        openssl(
            *("req", "-x509", *_new_key(self._key), "-out", str(self.certificate), "-days", "30"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, subject: str, *, hosts: str = HERE, days: int = 30, password: str = "") -> Issued:
        """Issue a certificate; `days` below 0 expired yesterday. `password` encrypts the key."""
        number = len(list(self._directory.glob("*.csr")))
        stem = self._directory / f"issued-{number}"
        issued = Issued(*(stem.with_suffix(suffix) for suffix in (".crt", ".key", ".pem")))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={hosts}\n" if hosts else "basicConstraints=CA:FALSE\n")
        openssl("req", *_new_key(issued.key, password), "-out", str(request), "-subj", subject, "-utf8")
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-out", str(issued.certificate), "-days", str(days), "-extfile", str(extensions)),
        )
        issued.store.write_text(issued.key.read_text() + issued.certificate.read_text())
        return issued

    def client(self, identity: Issued | None = None) -> ssl.SSLContext:
        """Return what a client of a broker with a certificate of this CA has; with `identity` it shows that."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if identity:
            context.load_cert_chain(identity.certificate, identity.key)
        return context


def openssl(*arguments: str) -> str:
    """Run openssl and return what it printed."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _new_key(path: Path, password: str = "") -> tuple[str, ...]:
    secured = ("-passout", f"pass:{password}") if password else ("-nodes",)
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", str(path), *secured)
