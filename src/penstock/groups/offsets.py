"""Committed offsets in memory, per group: a write-through copy of what the state machine has."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.state.command import OffsetWrite
from penstock.state.rows import OffsetRow

PartitionId = tuple[bytes, int]
"""Topic id and partition."""


class CommittedOffset(NamedTuple):
    """A committed offset as a reader gets it. `leader_epoch` is -1 when it is not known."""

    offset: int
    leader_epoch: int
    metadata: str


class OffsetLoad:
    """A read of a group's offsets that goes on for some turns of the loop, and what was committed
    since it began."""

    __slots__ = ("_found", "is_stale", "since")

    def __init__(self) -> None:
        self._found: dict[PartitionId, CommittedOffset] = {}
        self.since: dict[PartitionId, CommittedOffset | None] = {}
        """The offsets that were committed or deleted (None) since the reading began."""
        self.is_stale = False
        """Whether the stored offsets may have changed, so that what was read doesn't count."""

    def add(self, rows: Mapping[PartitionId, OffsetRow]) -> None:
        """Take up what was read."""
        for key, row in rows.items():
            self._found[key] = CommittedOffset(row.offset, row.leader_epoch, row.metadata)

    def found(self) -> dict[PartitionId, CommittedOffset]:
        """All offsets."""
        for key, committed in self.since.items():
            if committed is None:
                self._found.pop(key, None)
            else:
                self._found[key] = committed
        return self._found


class OffsetCache:
    """The offsets of one group; empty of knowledge until one `OffsetLoad` has ended.

    A read of the database while commits are under way may show them early, and their answers
    would then write older values over newer ones; so nothing is kept until they are answered.
    """

    __slots__ = ("_loads", "_offsets", "commits_open", "doubt_count", "is_in_doubt", "uses_open")

    def __init__(self) -> None:
        self._offsets: dict[PartitionId, CommittedOffset] | None = None
        self._loads: list[OffsetLoad] = []
        self.commits_open = 0
        """Commits and deletions that the journal has not answered."""
        self.uses_open = 0
        """Requests that go on in a later turn, for which the group must stay in memory."""
        self.is_in_doubt = False
        """One that was given up may still be applied, so that what is read may change."""
        self.doubt_count = 0

    def known(self) -> Mapping[PartitionId, CommittedOffset] | None:
        """All offsets; None when they have to be read."""
        return self._offsets

    def begin_load(self) -> OffsetLoad:
        """Begin to read them; `end_load` whatever comes of it."""
        load = OffsetLoad()
        # What is being committed may be in a page that is read, and not be answered yet.
        load.is_stale = self.commits_open > 0
        self._loads.append(load)
        return load

    def end_load(self, load: OffsetLoad) -> Mapping[PartitionId, CommittedOffset]:
        """Take up what was read."""
        self._loads.remove(load)
        offsets = load.found()
        if not self.commits_open and not self.is_in_doubt and not load.is_stale:
            self._offsets = offsets
        return offsets

    def store(self, writes: Sequence[OffsetWrite], codes: Sequence[int]) -> None:
        """A commit was answered: keep what was stored (code 0)."""
        stored = {
            (write.topic_id, write.partition): CommittedOffset(
                write.offset, write.leader_epoch, write.metadata
            )
            for write, code in zip(writes, codes, strict=True)
            if code == 0
        }
        for load in self._loads:
            load.since.update(stored)
        if self._offsets is not None:
            self._offsets.update(stored)

    def remove(self, keys: Sequence[PartitionId]) -> None:
        """A deletion was answered."""
        for load in self._loads:
            load.since.update(dict.fromkeys(keys))
        if self._offsets is not None:
            for key in keys:
                self._offsets.pop(key, None)

    def doubt(self) -> None:
        """A write was given up, and may be applied later: keep nothing until then."""
        self.doubt_count += 1
        self.is_in_doubt = True
        self.forget()

    def settle(self, doubt_count: int) -> None:
        """A write that began after so many doubts was answered: an agent's entries are applied in
        the order in which they were submitted, so what was given up before is settled, too."""
        if doubt_count == self.doubt_count:
            self.is_in_doubt = False

    def forget(self) -> None:
        """Read what is stored again: it may be other than what is known here."""
        self._offsets = None
        for load in self._loads:
            load.is_stale = True
