"""The value that stands for an applied entry, wherever entries are applied. Pure."""

from dataclasses import dataclass
from typing import Generic, TypeVar

OutcomeT = TypeVar("OutcomeT")


@dataclass(slots=True)
class Applied(Generic[OutcomeT]):
    """An entry that was applied: its position, journal time there, and what the machine made of
    it."""

    position: int
    time_ms: int
    outcome: OutcomeT
    body: bytes = b""
    """The entry itself, where it was read from a journal; a seal's is empty. A writer of its own
    journal leaves the body out."""
