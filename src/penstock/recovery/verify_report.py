"""What verifying has read and found."""

import enum
from dataclasses import dataclass, field


class FindingKind(enum.StrEnum):
    """What is wrong."""

    DAMAGED = "damaged"
    GAP = "gap"
    OVERLAP = "overlap"
    MISSING = "missing"
    ORPHAN = "orphan"
    DATABASE = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it must be. An orphan is not damage: it is deleted in time."""

    kind: FindingKind
    subject: str
    detail: str

    @property
    def is_damage(self) -> bool:
        """Whether acknowledged data is affected."""
        return self.kind is not FindingKind.ORPHAN


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was read and what was found."""

    topics: int = 0
    partitions: int = 0
    runs: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    objects: int = 0
    unread_runs: int = 0
    """In WALs that can't be read from here: a cluster's agents keep them."""
    unapplied_entries: int = 0
    """Past the database's position: of a server that was killed, or that writes just now. What they
    name was not read."""
    unapplied_in_wal: int = 0
    """Entries among those that only frames of the WAL hold."""
    lost_offsets: int = 0
    """That `penstock repair --accept-loss` has given up: no findings any more."""
    replayed_entries: int = 0
    """Of the archived journal, which gave the same state as the snapshot behind them."""
    not_replayed: str = ""
    """Why a cluster's archived journal was not replayed."""
    younger_objects: int = 0
    """Stored after the archive's end, or right before it: only the journal says who names them."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No damage was found."""
        return not any(finding.is_damage for finding in self.findings)

    def add(self, kind: FindingKind, subject: str, detail: str) -> None:
        """Take note of a finding."""
        self.findings.append(Finding(kind=kind, subject=subject, detail=detail))
