"""The write-ahead log of bytes: frames in recycled files. docs/formats/wal.md is its format."""

from penstock.wal.reader import WalReader
from penstock.wal.recovery import RecoveryReport
from penstock.wal.writer import WalPlace, WalWriter

__all__ = ["RecoveryReport", "WalPlace", "WalReader", "WalWriter"]
