"""The facts that a statement reads: the stored ones' tables, and the question's context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.authz.polar.program import Signature


@dataclass(frozen=True, slots=True)
class Tables:
    """The places of facts.

    Args:
        table: names the table of a signature; its columns are a0, a1, ...
        stored: the signatures that have a table.
        context: the signatures of the question's context facts.
    """

    table: Callable[[Signature], str]
    stored: frozenset[Signature]
    context: frozenset[Signature] = frozenset()

    def is_stored(self, signature: Signature) -> bool:
        """Whether it has a table."""
        return signature in self.stored
