"""Committed offsets in memory, per group: a write-through copy of what the state machine has."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.metadata.commands import OffsetWrite
from penstock.metadata.rows import OffsetRow

PartitionId = tuple[bytes, int]
"""Topic id and partition."""


class CommittedOffset(NamedTuple):
    """A committed offset as a reader gets it. `leader_epoch` is -1 when it is not known."""

    offset: int
    leader_epoch: int
    metadata: str


class OffsetCache:
    """The offsets of one group; empty of knowledge until `load`.

    A read of the database while commits are under way may show them early, and their answers
    would then write older values over newer ones; so nothing is kept until they are answered.
    """

    __slots__ = ("_offsets", "commits_open", "doubt_count", "is_in_doubt")

    def __init__(self) -> None:
        self._offsets: dict[PartitionId, CommittedOffset] | None = None
        self.commits_open = 0
        """Commits and deletions that the journal has not answered."""
        self.is_in_doubt = False
        """One that was given up may still be applied, so that what is read may change."""
        self.doubt_count = 0

    def known(self) -> Mapping[PartitionId, CommittedOffset] | None:
        """All offsets; None when they have to be read."""
        return self._offsets

    def load(self, rows: Mapping[PartitionId, OffsetRow]) -> Mapping[PartitionId, CommittedOffset]:
        """Take up what was read."""
        offsets = {
            key: CommittedOffset(row.offset, row.leader_epoch, row.metadata)
            for key, row in rows.items()
        }
        if not self.commits_open and not self.is_in_doubt:
            self._offsets = offsets
        return offsets

    def store(self, writes: Iterable[OffsetWrite], codes: Iterable[int]) -> None:
        """A commit was answered: keep what was stored (code 0)."""
        if self._offsets is None:
            return
        for write, code in zip(writes, codes, strict=True):
            if code == 0:
                self._offsets[write.topic_id, write.partition] = CommittedOffset(
                    write.offset, write.leader_epoch, write.metadata
                )

    def remove(self, keys: Iterable[PartitionId]) -> None:
        """A deletion was answered."""
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
        """What is stored is not known any more: read it again."""
        self._offsets = None
