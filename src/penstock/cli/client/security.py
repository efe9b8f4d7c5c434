"""A command says who it is to a listener of TLS or SASL by a file of settings, as Kafka's tools do.

The names are librdkafka's, since its clients get them as they are: `security.protocol`,
`ssl.ca.location`, `sasl.mechanism`, `sasl.username`, `sasl.password` and so on. The password is
never on a command line, which every user of the machine may read.
"""

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.security.listener import Protocol
from penstock.security.sasl.exchanges import PLAIN
from penstock.security.scram.credential import BY_SASL_NAME

_NAMES: Final = {
    "security.protocol": "protocol",
    "ssl.ca.location": "ca",
    "ssl.certificate.location": "certificate",
    "ssl.key.location": "key",
    "ssl.endpoint.identification.algorithm": "identification",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "user",
    "sasl.password": "password",
}
_IDENTIFICATIONS: Final = ("https", "none")
_MECHANISMS: Final = (PLAIN, *BY_SASL_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The settings of one file; "" where it has none."""

    protocol: Protocol = Protocol.PLAINTEXT
    ca: str = ""
    certificate: str = ""
    key: str = ""
    identification: str = "https"
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def librdkafka(self) -> dict[str, str]:
        """Return the settings of a librdkafka client."""
        if self.protocol is Protocol.PLAINTEXT:
            return {}
        found = {
            "security.protocol": self.protocol.value,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key or self.certificate,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }
        if self.protocol.has_tls:
            found["ssl.endpoint.identification.algorithm"] = self.identification
        return {name: value for name, value in found.items() if value}


def read_security(path: Path) -> ClientSecurity:
    """Read a file of NAME=VALUE lines; `#` begins a comment.

    Raises:
        NotFoundError: the file can't be read.
        InvalidRequestError: a line isn't one of a client's settings, they don't fit together, or
            other users may read the password.
    """
    try:
        text = path.read_text()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError("read settings", str(path), str(error)) from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        known = _NAMES.get(name.strip())
        if not equals or known is None:
            # Without its value, which may be a password.
            raise _refused(
                path,
                f"line {number}: {name.strip()[:60]!r} is not a setting of a client",
                "known are " + ", ".join(_NAMES),
            )
        values[known] = value.strip()
    found = _checked(path, values)
    if found.password and stat.S_IMODE(mode) & stat.S_IRWXO:
        raise _refused(
            path,
            f"every user of this machine may read its password: its mode is {mode & 0o777:03o}",
            "chmod o=",
        )
    return found


def _checked(path: Path, values: dict[str, str]) -> ClientSecurity:
    text = values.pop("protocol", Protocol.PLAINTEXT.value)
    try:
        protocol = Protocol(text.upper())
    except ValueError:
        names = ", ".join(Protocol)
        raise _refused(path, f"security.protocol {text[:40]!r} is not one of {names}") from None
    found = ClientSecurity(protocol=protocol, **values)
    if found.identification not in _IDENTIFICATIONS:
        raise _refused(path, "ssl.endpoint.identification.algorithm is https or none")
    if protocol.has_sasl:
        if found.mechanism not in _MECHANISMS:
            raise _refused(path, f"sasl.mechanism must be one of {', '.join(_MECHANISMS)}")
        if not found.user or not found.password:
            raise _refused(path, f"{protocol} needs sasl.username and sasl.password")
    return found


def _refused(path: Path, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("read settings", str(path), detail, hint)
