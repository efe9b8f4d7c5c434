"""The first screen: what runs where, and what to try. Pure."""

from collections.abc import Sequence

from penstock.config.addresses import Address
from penstock.version import VERSION


def banner(
    *,
    command: str,
    kafka: Address,
    http: Address | None,
    data: str,
    cluster_id: str,
    node_id: int,
    others: Sequence[Address] = (),
) -> str:
    """The text, which ends in a newline.

    Args:
        command: how the reader can call the console script.
        kafka: what clients connect to.
        others: of further workers.
    """
    server = "" if str(kafka) == "127.0.0.1:9092" else f" --server {kafka}"
    http_line = f"http://{http}  (/v1/status, /metrics, /healthz, /readyz)" if http else "off"
    return f"""\
Penstock {VERSION} is ready.

  Kafka clients  {", ".join(str(address) for address in (kafka, *others))}
  HTTP           {http_line}
  data           {data}
  cluster        {cluster_id}, node {node_id}

Try in another terminal:

  {command} topic create greetings --partitions 3{server}
  echo "hello, log" | {command} produce greetings{server}
  {command} consume greetings --from-beginning --max-messages 1{server}
  {command} --help

Ctrl-C drains and stops it.
"""
