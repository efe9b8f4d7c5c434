"""Knows how the transactions of a run ended, and what readers of committed records may see of them.

The kinds of anomalies are Jepsen's for Kafka: a record of an aborted transaction (G1a), of one
whose commit its producer has not asked for yet, a transaction of which a part is there, a record
twice, and offsets of a group that a committed transaction has not moved.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.history import History, Place


TOPIC = "transactional"
PARTITIONS = 2


class Outcome(enum.Enum):
    """One transaction, as far as its producer knows it."""

    OPEN = "open"
    """Nobody has asked for its commit."""
    IN_DOUBT = "in doubt"
    """Its commit was asked for, and not answered."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Also of one that its producer has left, and whose commit was never asked for."""


@dataclass(slots=True)
class Fact:
    """One transaction. `number`: of its producer's."""

    producer: str
    number: int
    outcome: Outcome = Outcome.OPEN
    values: dict[bytes, Place] = field(default_factory=dict)
    """Its records that were acknowledged."""
    in_doubt: set[bytes] = field(default_factory=set)
    """Those whose answer was lost: only an aborted transaction may have them."""
    offset: int = -1
    """The offset of the producer's group that it commits; -1: none."""
    seen: bool = False
    """Whether a reader was given any of it."""


class Transactions:
    """Facts of all transactions, each checked when it is learned."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.facts: dict[tuple[str, int], Fact] = {}
        self._offsets: dict[bytes, tuple[Place, int]] = {}

    def begun(self, producer: str, number: int) -> Fact:
        """A producer begins its next transaction."""
        fact = self.facts[producer, number] = Fact(producer, number)
        return fact

    def ended(self, fact: Fact, outcome: Outcome) -> None:
        """It is known what became of it."""
        if fact.outcome in (Outcome.COMMITTED, Outcome.ABORTED) and fact.outcome is not outcome:
            self._history.violate(
                "two-outcomes", f"{fact.producer}/{fact.number}: {fact.outcome}, then {outcome}"
            )
        fact.outcome = outcome
        if outcome is Outcome.ABORTED and fact.seen:
            self._history.violate("aborted-read", f"{fact.producer}/{fact.number} was read before")
        self._history.count(f"transaction {outcome.value}")

    def read(self, place: Place, offset: int, value: bytes, who: str) -> None:
        """A reader of committed records was given a record."""
        fact = self._fact(value)
        name = f"{place} offset {offset} {value!r} to {who}"
        if fact.outcome is Outcome.OPEN:
            self._history.violate("precommitted-read", name)
        if fact.outcome is Outcome.ABORTED:
            self._history.violate("aborted-read", name)
        known = self._offsets.setdefault(value, (place, offset))
        if known != (place, offset):
            self._history.violate("duplicate", f"{name}, and at {known}")
        fact.seen = True
        self._history.count("committed record read")

    def check(self, read: dict[Place, dict[int, bytes]], offsets: dict[str, int]) -> None:
        """All is over: each transaction is there whole, or not at all.

        Args:
            read: all committed records.
            offsets: by producer its group's committed offset; -1: none.
        """
        found = {value for records in read.values() for value in records.values()}
        last: dict[str, int] = {}
        for (producer, number), fact in sorted(self.facts.items()):
            there = fact.values.keys() & found
            name = f"{producer}/{number}, {fact.outcome.value}"
            if fact.outcome is Outcome.COMMITTED and len(there) < len(fact.values):
                self._history.violate("torn", f"{name}: {sorted(fact.values.keys() - there)}")
            if fact.outcome is Outcome.IN_DOUBT and there and len(there) < len(fact.values):
                self._history.violate("torn", f"{name}: {sorted(fact.values.keys() - there)}")
            if fact.offset >= 0:
                if fact.outcome is Outcome.COMMITTED or there:
                    last[producer] = fact.offset
                elif fact.outcome is Outcome.IN_DOUBT and not fact.values:
                    # Nothing shows what became of it.
                    last.setdefault(producer, -1)
                    if offsets.get(producer, -1) == fact.offset:
                        last[producer] = fact.offset
        for producer, offset in last.items():
            if offsets.get(producer, -1) != offset:
                self._history.violate(
                    "lost-offset", f"{producer}: {offsets.get(producer, -1)}, not {offset}"
                )
        self._history.count("transactions checked")

    def _fact(self, value: bytes) -> Fact:
        producer, number, _ = value.decode().split("/", 2)
        return self.facts[producer, int(number)]
