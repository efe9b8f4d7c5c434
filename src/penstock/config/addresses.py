"""HOST:PORT as a value. Pure."""

import ipaddress
from typing import NamedTuple

from penstock.model.errors import InvalidRequestError


class Address(NamedTuple):
    """A host name or IP address and a TCP port; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every interface, so that no client could connect to it by name."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return self.host == ""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it. A name other than localhost is not looked up:
        what it resolves to may change, so it counts as reachable."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() in ("localhost", "localhost.")

    @property
    def from_here(self) -> "Address":
        """The address by which programs of this machine reach it."""
        if not self.is_wildcard:
            return self
        return Address("::1" if ":" in self.host else "127.0.0.1", self.port)


def parse_address(text: str, *, setting: str) -> Address:
    """Split "HOST:PORT"; an IPv6 host stands in brackets, "[::1]:9092".

    Args:
        setting: what to name in an error.

    Raises:
        InvalidRequestError: it is not such an address.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # an IPv6 address without brackets: where its port begins is a guess
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidRequestError(
            "read setting", setting, f"{text!r} is not HOST:PORT", "for example 127.0.0.1:9092"
        )
    return Address(host, int(port))


def parse_counts(text: str, *, setting: str) -> dict[str, int]:
    """Split "ADDRESS:COUNT,...", as Kafka writes a limit per IP address.

    Args:
        setting: what to name in an error.

    Returns:
        Counts by address, in the form in which a socket names its peer.

    Raises:
        InvalidRequestError: the text isn't such a list, or names a host, whose address may change.
    """
    counts: dict[str, int] = {}
    for pair in text.split(",") if text.strip() else ():
        host, _, count = pair.strip().rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip().removeprefix("[").removesuffix("]")))
            counts[address] = int(count)
        except ValueError as error:
            raise InvalidRequestError(
                "read setting",
                setting,
                f"{pair.strip()!r} is not ADDRESS:COUNT",
                "for example 10.0.0.7:500,[fd00::7]:20",
            ) from error
        if counts[address] < 0:
            raise InvalidRequestError(
                "read setting", setting, f"{counts[address]} connections of {address}", "give 0"
            )
    return counts
