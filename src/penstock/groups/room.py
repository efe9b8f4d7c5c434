"""Decides whether there may be one more group. Event loop only.

The limit is the cluster's, looked at where a group begins: groups are counted in the database, and
those that began here since are added. They are counted again every COUNTED_EVERY_S, and once
BEGUN_MAX have begun here. Those that other agents began since the count, and those in their memory
that no generation or commit has stored yet, are not known here: so n agents together go above the
limit by (n - 1) x BEGUN_MAX stored groups at most.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.system.heard import say_seldom

if TYPE_CHECKING:
    from penstock.state.read.queries import Queries

logger = logging.getLogger(__name__)

COUNTED_EVERY_S: Final = 10.0
BEGUN_MAX: Final = 1_000


class GroupRoom:
    """See the module.

    Args:
        held: how many groups this agent has in memory, those that are not stored yet included.
    """

    def __init__(self, queries: "Queries", *, groups_max: int, held: Callable[[], int]) -> None:
        self._queries = queries
        self._groups_max = groups_max
        self._held = held
        self._stored = self._begun = 0
        self._counted_s: float | None = None

    def begin(self, group_id: str) -> bool:
        """Count a group that begins; false: there may be no further one, which the log says."""
        now_s = asyncio.get_running_loop().time()
        if (
            self._counted_s is None
            or now_s - self._counted_s >= COUNTED_EVERY_S
            or self._begun >= BEGUN_MAX
        ):
            self._stored, self._begun = self._queries.group_count(self._groups_max), 0
            self._counted_s = now_s
        count = max(self._stored + self._begun, self._held())
        if count >= self._groups_max:
            say_seldom(
                "groups_max",
                f"there are {count} groups, groups_max = {self._groups_max}",
                logger,
                f"refused to begin group {group_id!r}",
            )
            return False
        self._begun += 1
        return True
