"""A listener's name and protocol, as handlers and connections know them. Pure."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


class Protocol(enum.StrEnum):
    """Kafka's security protocols."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self in {Protocol.SSL, Protocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of this server. `advertised_host` and `advertised_port` are where clients that
    came by it find this server again."""

    name: str
    protocol: Protocol
    advertised_host: str
    advertised_port: int


DEFAULT_NAME: Final = "PLAINTEXT"
"""The name of the listener that the setting `kafka` gives."""
LISTENERS_LABEL: Final = "penstock.listeners"
"""An agent publishes the addresses of its listeners in this label, where it has others than the
default one."""


def format_endpoints(listeners: Iterable[Listener]) -> str:
    """Write listeners' advertised addresses as the label has them: NAME=HOST:PORT, with spaces."""
    return " ".join(
        f"{each.name}={_host(each.advertised_host)}:{each.advertised_port}" for each in listeners
    )


def parse_endpoints(text: str) -> dict[str, str]:
    """Invert `format_endpoints`: HOST:PORT by name."""
    return dict(pair.partition("=")[::2] for pair in text.split())


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
