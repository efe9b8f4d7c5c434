"""Lines are read from files, from a terminal and from pipes, each as soon as it is there."""

import io
import select
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

STDIN: Final = "-"
READ_BYTES: Final = 256 * 1024
LOOK_S: Final = 1.0
"""The seconds between two looks for Ctrl-C, since a signal just before a wait doesn't end the
wait."""


class Lines(NamedTuple):
    """Lines without their ends.

    `first` is the first line's number in `source`, counted from 1; `size_bytes` is how much was
    read for these lines.
    """

    source: str
    first: int
    texts: list[bytes]
    size_bytes: int


def lines_of_file(path: Path) -> Iterator[Lines]:
    """Yield all lines of a file."""
    with path.open("rb") as stream:
        yield from _split(str(path), iter(lambda: stream.read(READ_BYTES), b""))


def lines_that_come(stream: io.BufferedReader) -> Iterator[Lines]:
    """Yield lines of standard input until its end, each as soon as it is there.

    While nothing comes, an empty `Lines` is yielded each LOOK_S, so that the caller can do other
    work.

    Args:
        stream: read by nothing else. A stream without a descriptor is read without waiting first.
    """
    return _split("standard input", _pieces(stream))


def _pieces(stream: io.BufferedReader) -> Iterator[bytes]:
    while True:
        while not _has_more(stream):
            yield b""
        # `read1` makes at most one read. `readline` would keep what follows in a buffer that
        # `select` can't see, and `read` would wait until all READ_BYTES are there.
        data = stream.read1(READ_BYTES)
        if not data:
            return
        yield data


def _split(source: str, pieces: Iterable[bytes]) -> Iterator[Lines]:
    number, begun = 1, [b""]
    for piece in pieces:
        *texts, last = piece.split(b"\n")
        if not texts and last:
            begun.append(last)
            continue
        if texts:
            texts[0] = b"".join([*begun, texts[0]])
            begun = [last]
            if b"\r" in piece or texts[0].endswith(b"\r"):
                texts = [text.rstrip(b"\r") for text in texts]
        yield Lines(source, number, texts, len(piece))
        number += len(texts)
    if rest := b"".join(begun):
        yield Lines(source, number, [rest.rstrip(b"\r")], 0)


def _has_more(stream: io.BufferedReader) -> bool:
    """Whether bytes, or the stream's end, can be read within LOOK_S."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return True
    return bool(select.select([descriptor], [], [], LOOK_S)[0])
