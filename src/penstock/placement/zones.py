"""Chooses the agents that a client is sent to: those of its zone, if there are any. Pure.

A zone is an agent's label `zone`. A client names its own in its client id (`penstock_zone=`),
since that is what every client can set and what every request carries; else by the rack id that
it sends with Fetch and Join.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ZONE_LABEL: Final = "zone"
_ZONE: Final = re.compile(r"(?:^|[^A-Za-z0-9_])penstock_zone=([^,;&\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One agent: its zone, and whether it takes new clients."""

    agent: int
    zone: str = ""
    draining: bool = False


@lru_cache(maxsize=4096)
def zone_in_client_id(client_id: str) -> str:
    """The zone that a client id names; "" when it names none.

    The id is divided by commas, semicolons, ampersands or blanks: `app-7,penstock_zone=eu-1a`.
    """
    found = _ZONE.search(client_id)
    return "" if found is None else found[1]


def zone_of(client_id: str | None, rack_id: str = "") -> str:
    """A client's zone; "" when it has said nothing."""
    return (zone_in_client_id(client_id) if client_id else "") or rack_id


def candidates(places: Iterable[Place], zone: str) -> tuple[int, ...]:
    """Return the agents that a client of a zone is sent to, ascending.

    These are the agents of its zone; if there are none, or the client named no zone, all agents.
    Agents that are being drained count only when all are.
    """
    known: Sequence[Place] = list(places)
    staying = [place for place in known if not place.draining] or known
    near = [place for place in staying if zone and place.zone == zone]
    return tuple(sorted(place.agent for place in near or staying))
