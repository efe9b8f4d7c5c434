"""The banner is a server's first screen: it says what runs where, and what to try. Pure."""

from typing import Final

import msgspec

from penstock.config.addresses import Address
from penstock.version import VERSION

_PLAINTEXT: Final = "PLAINTEXT"


class ListenerShown(msgspec.Struct, frozen=True):
    """A listener of Kafka clients, for people."""

    name: str
    protocol: str
    address: Address


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """A server introduces itself with this to a person, or to the parent of workers, once it
    serves."""

    pid: int
    advertised: Address
    """Clients connect to this address."""
    http: Address | None
    data: str
    cluster_id: str
    node_id: int
    listeners: tuple[ListenerShown, ...] = ()
    """Empty: one of PLAINTEXT, at `advertised`."""


def banner(server: Introduction, *others: Introduction, command: str) -> str:
    """Return the banner's text, which ends in a newline.

    Args:
        others: the introductions of the host's further workers.
        command: calls the console script in the reader's shell.
    """
    kafka, http = _simplest(server), server.http
    option = "" if str(kafka) == "127.0.0.1:9092" else f" --server {kafka}"
    http_line = f"http://{http}  (/v1/status, /metrics, /healthz, /readyz)" if http else "off"
    clients = ", ".join(text for one in (server, *others) for text in _addresses(one))
    return f"""\
Penstock {VERSION} is ready.

  Kafka clients  {clients}
  HTTP           {http_line}
  data           {server.data}
  cluster        {server.cluster_id}, node {server.node_id}

Try in another terminal:

  {command} topic create greetings --partitions 3{option}
  echo "hello, log" | {command} produce greetings{option}
  {command} consume greetings --from-beginning --max-messages 1{option}
  {command} --help

Ctrl-C drains and stops it.
"""


def _addresses(server: Introduction) -> list[str]:
    """Return the addresses of all listeners; with names and protocols where there are several, or
    one that a client must be set up for."""
    if all(one.protocol == _PLAINTEXT for one in server.listeners) and len(server.listeners) < 2:
        return [str(server.advertised)]
    return [f"{one.address} ({one.name}, {one.protocol})" for one in server.listeners]


def _simplest(server: Introduction) -> Address:
    """Return the address that the commands to try name: of a listener that asks for nothing, if
    there is one."""
    plain = (one.address for one in server.listeners if one.protocol == _PLAINTEXT)
    return next(plain, server.advertised)
