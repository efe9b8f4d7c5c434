"""What a client wrote or read, in a shape that all clients share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written to a named partition."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as a client gave it to its reader."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())

    def without_offset(self) -> NewRecord:
        """The record that must have been written."""
        return NewRecord(self.partition, self.key, self.value, self.timestamp_ms, self.headers)
