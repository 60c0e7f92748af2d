"""Names of certificates as Java writes them, to the character; their end; and PEM in every form that Kafka takes."""

from __future__ import annotations

import base64
import ssl
import time
from pathlib import Path

import pytest

from korvet.security.certificates import distinguished_name, expires_at, pem_blocks, subject
from tests.support.authority import Authority

DAY = 86_400

# What Java 17 printed: new X500Principal(Base64.getDecoder().decode(name)).getName()
BY_JAVA = [
    ("MBMxETAPBgNVBAMeCABKAPYAcgBn", "CN=\\00J\\00�\\00r\\00g"),
    ("MA8xDTALBgNVBAMMBGEKYgE=", "CN=a\nb\x01"),
    (
        "MCwxDjAMBgNVBAMMBWFsaWNlMRowGAYJKoZIhvcNAQkBFgthQGIuZXhhbXBsZQ==",
        "1.2.840.113549.1.9.1=#160b6140622e6578616d706c65,CN=alice",
    ),
    ("MAsxCTAHBgNVBAMMAA==", "CN="),
    ("MCAxHjAcBgNVBAMMFSBhLGIrYyJkXGU8Zj5nO2g9aSNqIA==", 'CN=\\ a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j\\ '),
    ("MAwxCjAIBgNVBAMbAWc=", "CN=g"),
    ("MA0xCzAJBgNVBAMMAiN4", "CN=\\#x"),
    ("MA8xDTALBgNVBAMMBGEgIGI=", "CN=a  b"),
    ("MA4xDDAKBgNVBAMMAyAgYQ==", "CN=\\ \\ a"),
    (
        "MEsxGzAIBgNVBAMMAWEwDwYKCZImiZPyLGQBAQwBdTEXMBUGCgmSJomT8ixkARkWB2V4YW1wbGUxEzARBgoJkiaJk/IsZAEZFgNjb20=",
        "DC=com,DC=example,CN=a+UID=u",
    ),
    ("MAA=", ""),
    ("MA4xDDAKBgNVBAMMA2EAYg==", "CN=a\\00b"),
    ("MA0xCzAJBgNVBAMSAjEy", "CN=#12023132"),
    (
        "MEExCzAJBgNVBAQMAlNuMQswCQYDVQQMDAJEcjELMAkGA1UEBRMCMTIxDDAKBgNVBAkMA1MgMTEKMAgGA1UEBwwBTA==",
        "L=L,STREET=S 1,2.5.4.5=#13023132,2.5.4.12=#0c024472,2.5.4.4=#0c02536e",
    ),
    (
        "MFcxCzAJBgNVBAYTAkRFMQ8wDQYDVQQIDAZCZXJsaW4xDzANBgNVBAoMBktvcnZldDEKMAgGA1UECwwBQTEKMAgGA1UECwwBQjEOMAwGA1UEAwwFYWxpY2U=",
        "CN=alice,OU=B,OU=A,O=Korvet,ST=Berlin,C=DE",
    ),
    ("MA4xDDAKBgNVBAMMAyAgIA==", "CN=\\ \\ \\ "),
    ("MA8xDTALBgNVBAMUBEr2cmc=", "CN=J�rg"),
    ("MA4xDDAKBgNVBAMMA2EgIA==", "CN=a\\ \\ "),
    ("MBMxETAPBgNVBAMcCAAAAEoAAAD2", "CN=#1c080000004a000000f6"),
    ("MBkxFzAVBgNVBAMMDkrDtnJnIOS4rSDwn5iA", "CN=Jörg 中 😀"),
    ("MAwxCjAIBgNVBAMaAXY=", "CN=#1a0176"),
]


@pytest.mark.parametrize(("name", "written"), BY_JAVA)
def test_a_name_is_written_as_java_writes_it(name: str, written: str) -> None:
    assert distinguished_name(base64.b64decode(name)) == written


@pytest.mark.parametrize("name", ["MA==", "MAUxAzAB", "MIQ="])
def test_what_is_not_der_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not DER"):
        distinguished_name(base64.b64decode(name))


@pytest.mark.slow
def test_subject_and_end_are_read_of_a_whole_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for days, subject_given in ((30, "/C=DE/O=Korvet/CN=alice"), (10_000, "/CN=J\u00f6rg"), (-1, "/CN=late")):
        issued = authority.issue(subject_given, days=days)
        der = ssl.PEM_cert_to_DER_cert(issued.certificate.read_text())
        assert subject(der) == ",".join(reversed(subject_given[1:].split("/")))
        assert abs(expires_at(der) - (time.time() + days * DAY)) < DAY / 2


@pytest.mark.slow
def test_pem_has_its_blocks_with_line_ends_and_with_blanks_in_their_place(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("/CN=broker")
    text = issued.store.read_text()
    key, certificate = pem_blocks(text)
    assert (key.label, certificate.label) == ("PRIVATE KEY", "CERTIFICATE")
    assert certificate.text == issued.certificate.read_text()
    assert pem_blocks(text.replace("\n", " ")) == [key, certificate]
    assert pem_blocks(f"Bag Attributes\n{text}\nmore") == [key, certificate]
    assert certificate.der == ssl.PEM_cert_to_DER_cert(certificate.text)
