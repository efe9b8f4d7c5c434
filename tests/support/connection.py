"""The commands' typed connection, with the APIs that tests ask of an agent by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.cli.client import connection
from penstock.config.addresses import Address

SPOKEN: Final[Mapping[str, tuple[int, int]]] = {
    **connection.SPOKEN,
    "list_offsets": (1, 7),
    "offset_commit": (2, 8),
    "join_group": (5, 9),
}


class Connection(connection.Connection):
    """A socket to one agent: requests and their answers, one at a time. Not for several threads."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        super().__init__(address, timeout_s=timeout_s, spoken=SPOKEN)
