"""The place where the workers of one host meet."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.ports.device import Device
from penstock.state.read.queries import Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """The workers of one host share this besides the database and the objects."""

    socket: Path
    """The one that writes the journal takes entries of the others here."""
    find_wals: Callable[[Callable[[], Queries]], Callable[[int], Device | None]]
    """Makes of connections to the database what gives the device of a worker's WAL by its key;
    None: the WAL is not on this host."""
