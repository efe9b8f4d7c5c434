"""The context in which a command is applied: tables, its place in the journal, what it changed."""

from penstock.state.changes import Change
from penstock.state.tables import Tables


class ApplyContext:
    """One entry's application. `time_ms` is journal time; agent and epoch are the entry's."""

    __slots__ = ("agent", "asks_digest", "changes", "epoch", "position", "tables", "time_ms")

    def __init__(
        self, tables: Tables, position: int, time_ms: int, *, agent: int, epoch: int
    ) -> None:
        self.tables = tables
        self.position = position
        self.time_ms = time_ms
        self.agent = agent
        self.epoch = epoch
        self.changes: list[Change] = []
        self.asks_digest = False
        """Whether the state behind this entry is to be hashed."""
