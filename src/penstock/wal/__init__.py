"""The write-ahead log: frames in recycled files. docs/formats/wal.md is its format."""

from penstock.wal.entries import WalEntry, entries_after
from penstock.wal.format import frame_bytes_max
from penstock.wal.reader import RecycledError, WalReader
from penstock.wal.recovery import RecoveryReport
from penstock.wal.walk import DamagedStretch
from penstock.wal.writer import WalPlace, WalWriter

__all__ = [
    "DamagedStretch",
    "RecoveryReport",
    "RecycledError",
    "WalEntry",
    "WalPlace",
    "WalReader",
    "WalWriter",
    "entries_after",
    "frame_bytes_max",
]
