"""The subject of a certificate as Kafka writes it: RFC 2253, the last of its parts first. Pure.

Python's ssl gives the subject as texts, without the types that RFC 2253 needs for attributes that
it doesn't name, so the certificate's DER is read: a certificate that OpenSSL has verified.
"""

from collections.abc import Iterator
from typing import Final

from penstock.model.errors import CorruptDataError

_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_TEXTS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""UTF8String, PrintableString, T61String, IA5String, UniversalString, BMPString."""
_NAMES: Final = {
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
"""The attributes with names in RFC 2253; others are written by their numbers, with bytes in hex."""
_ESCAPED: Final = frozenset(',+"\\<>;')


def subject(certificate: bytes) -> str:
    """Return the subject's distinguished name, for example "CN=alice,OU=dev,O=Example".

    Args:
        certificate: DER.

    Raises:
        CorruptDataError: the bytes are not a certificate.
    """
    try:
        _, body, _ = _element(certificate, 0)
        _, fields, _ = _element(body, 0)
        parts = list(_elements(fields))
        if parts[0][0] == _VERSION:
            del parts[0]
        # Serial number, signature, issuer, validity, subject.
        names = [_relative(value) for tag, value in _elements(parts[4][1]) if tag == _SET]
    except (IndexError, ValueError) as error:
        raise CorruptDataError("read", "certificate", f"not DER: {error}") from error
    return ",".join(reversed(names))


def _relative(body: bytes) -> str:
    """Write one relative name, which may have several attributes."""
    return "+".join(_attribute(value) for _, value in _elements(body))


def _attribute(body: bytes) -> str:
    tag, oid, end = _element(body, 0)
    if tag != _OID:
        raise ValueError("an attribute without a type")
    value_tag, value, _ = _element(body, end)
    number = _oid(oid)
    name = _NAMES.get(number)
    encoding = _TEXTS.get(value_tag)
    if name is None or encoding is None:
        return f"{name or number}=#{body[end:].hex()}"
    return f"{name}={_escaped(value.decode(encoding))}"


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{sign}" if sign in _ESCAPED else sign for sign in text)
    if escaped[:1] in {" ", "#"}:
        escaped = f"\\{escaped}"
    if text.endswith(" ") and len(text) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped


def _oid(body: bytes) -> str:
    first = min(body[0] // 40, 2)
    numbers, value = [first, body[0] - 40 * first], 0
    for byte in body[1:]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    return ".".join(map(str, numbers))


def _elements(body: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(body):
        tag, value, position = _element(body, position)
        yield tag, value


def _element(body: bytes, position: int) -> tuple[int, bytes, int]:
    """Read a tag and its bytes; the position after them is third."""
    tag, length = body[position], body[position + 1]
    start = position + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(body[start : start + count], "big")
        start += count
    end = start + length
    if end > len(body):
        raise ValueError(f"{length} bytes announced, {len(body) - start} are there")
    return tag, body[start:end], end
