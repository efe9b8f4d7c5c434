"""The banner is a server's first screen: it says what runs where, and what to try. Pure."""

import msgspec

from penstock.config.addresses import Address
from penstock.version import VERSION


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


def banner(server: Introduction, *others: Introduction, command: str) -> str:
    """Return the banner's text, which ends in a newline.

    Args:
        others: the introductions of the host's further workers.
        command: calls the console script in the reader's shell.
    """
    kafka, http = server.advertised, server.http
    option = "" if str(kafka) == "127.0.0.1:9092" else f" --server {kafka}"
    http_line = f"http://{http}  (/v1/status, /metrics, /healthz, /readyz)" if http else "off"
    clients = ", ".join(str(one.advertised) for one in (server, *others))
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
