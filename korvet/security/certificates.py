"""What Korvet reads of certificates: PEM blocks, the end of their validity, and the name of their subject.

The name is written as Kafka writes it, which is how Java does (RFC 2253 with its own escapes): the last part first, and
attributes without a short name there, e-mail addresses too, by object identifier and hexadecimal value. ACLs are
written with such names, so that none may differ by a character. The DER read here was accepted by OpenSSL before.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_VERSION, _UTC_TIME = 0xA0, 0x17
_MORE = 0x80
"""Bit of a length that takes several bytes, and of each byte of a number but the last."""
_TEXTS = frozenset(
    {12, 19, 20, 22, 27, 30}
)  # UTF8, Printable, T61, IA5, General, BMP: others are written in hex
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_OUTER_BLANKS = re.compile(r"\A +| +\Z")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_HEADERS = re.compile(r"\s*((?:[A-Za-z-]+: [^\n]*\n)*)")
_LINE = 64


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


class PemBlock(NamedTuple):
    """One block: its label, for instance CERTIFICATE, and its text as OpenSSL reads it."""

    label: str
    text: str

    @property
    def der(self) -> bytes:
        """Its content; raises ValueError."""
        try:
            return base64.b64decode("".join(self.text.splitlines()[1:-1]), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{self.label} is not base64") from error


def pem_blocks(text: str) -> list[PemBlock]:
    """Return the blocks of a text; blanks may stand in place of the line ends, as in files of Java properties."""
    result = []
    for label, body in _BLOCK.findall(text):
        headers = _HEADERS.match(body)  # of a key that is encrypted in the older form: Proc-Type, DEK-Info
        head = headers[1] if headers else ""
        packed = "".join(body[headers.end() if headers else 0 :].split())
        lines = [packed[at : at + _LINE] for at in range(0, len(packed), _LINE)]
        between = f"{head}\n" if head else ""
        result.append(
            PemBlock(
                label,
                "\n".join(
                    [f"-----BEGIN {label}-----", between + lines[0], *lines[1:], f"-----END {label}-----", ""]
                ),
            )
            if lines
            else PemBlock(label, "")
        )
    return result


def expires_at(certificate: bytes) -> float:
    """Return when a certificate, in DER, ceases to be valid, in seconds since 1970; raises ValueError."""
    validity = _elements(_fields(certificate)[4].content)
    end = list(validity)[1]
    text = end.content.decode("ascii")
    if end.tag == _UTC_TIME:  # two digits of the year, up to 2049 (RFC 5280)
        text = f"{'19' if text >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def subject(certificate: bytes) -> str:
    """Return the name of a certificate's subject, in DER; raises ValueError."""
    return distinguished_name(_fields(certificate)[5].whole)


def distinguished_name(name: bytes) -> str:
    """Write a name, in DER, as Java's X500Principal does."""
    [sequence] = _elements(name)
    parts = [
        "+".join(_attribute(attribute) for attribute in _elements(part.content))
        for part in _elements(sequence.content)
    ]
    return ",".join(reversed(parts))


def _fields(certificate: bytes) -> list[_Element]:
    """Return serial number, algorithm, issuer, ... at their places in TBSCertificate; the version is first."""
    [whole] = _elements(certificate)
    result = list(_elements(next(_elements(whole.content)).content))
    return result if result[0].tag == _VERSION else [result[0], *result]


def _attribute(attribute: _Element) -> str:
    kind, value = _elements(attribute.content)
    identifier = _identifier(kind.content)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or identifier}=#{value.whole.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", value.content.decode(errors="replace")).replace("\0", "\\00")
    outside = _OUTER_BLANKS.sub(lambda blanks: len(blanks[0]) * "\\ ", text)
    return f"{keyword}={outside}"


def _identifier(content: bytes) -> str:
    numbers = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & _MORE:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the elements of DER one after the other; raises ValueError."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("not DER")
        start = at + 2
        length = data[at + 1]
        if length & _MORE:
            start += length & 0x7F
            length = int.from_bytes(data[at + 2 : start])
        end = start + length
        if end > len(data):
            raise ValueError("not DER")
        yield _Element(data[at], data[start:end], data[at:end])
        at = end
