"""A report says what verifying has read and found."""

import enum
from dataclasses import dataclass, field


class FindingKind(enum.StrEnum):
    """The kind of a finding."""

    DAMAGED = "damaged"
    GAP = "gap"
    OVERLAP = "overlap"
    MISSING = "missing"
    ORPHAN = "orphan"
    DATABASE = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. An orphan is not damage: the server deletes it in time."""

    kind: FindingKind
    subject: str
    detail: str

    @property
    def is_damage(self) -> bool:
        """Whether acknowledged data is affected."""
        return self.kind is not FindingKind.ORPHAN


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """Counts of what was read, and the findings."""

    topics: int = 0
    partitions: int = 0
    runs: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    objects: int = 0
    unread_runs: int = 0
    """Runs in WALs that can't be read from here, since only a cluster's agents can."""
    unapplied_entries: int = 0
    """Entries past the database's position: the server was killed, or is writing now. Records that
    only these entries name were not read."""
    unapplied_in_wal: int = 0
    """The number of unapplied entries that only frames of the WAL hold."""
    lost_offsets: int = 0
    """Offsets that `penstock repair --accept-loss` has given up, which aren't findings."""
    replayed_entries: int = 0
    """Entries of the archived journal that were replayed and gave the snapshot's state."""
    not_replayed: str = ""
    """The reason why a cluster's archived journal was not replayed; "": it was."""
    younger_objects: int = 0
    """Objects stored after the archive's end, or right before it. Only the journal's database says
    whether the state names them."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not any(finding.is_damage for finding in self.findings)

    def add(self, kind: FindingKind, subject: str, detail: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind=kind, subject=subject, detail=detail))
