"""The write-ahead log: frames in recycled files. docs/formats/wal.md is its format."""

from penstock.wal.entries import WalEntry, entries_after
from penstock.wal.reader import WalReader
from penstock.wal.recovery import RecoveryReport
from penstock.wal.writer import WalPlace, WalWriter

__all__ = ["RecoveryReport", "WalEntry", "WalPlace", "WalReader", "WalWriter", "entries_after"]
