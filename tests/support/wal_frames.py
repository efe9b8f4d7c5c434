"""What the tests of the WAL share: appending a frame in one go."""

from collections.abc import Sequence

from typing_extensions import Buffer

from penstock.wal import WalPlace, WalWriter


def append(
    writer: WalWriter,
    buffers: Sequence[Buffer],
    *,
    length: int,
    entry: bytes = b"",
    position: int = 0,
    time_ms: int = 0,
) -> WalPlace:
    """A frame of batches and, if given, an entry."""
    writer.place(length + len(entry), position=position)
    return writer.write(buffers, length=length, entry=entry, position=position, time_ms=time_ms)
