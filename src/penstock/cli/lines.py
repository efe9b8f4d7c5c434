"""Lines as they come: of files, and of what is typed or trickles through a pipe."""

import io
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

STDIN: Final = "-"
READ_BYTES: Final = 64 * 1024
LOOK_S: Final = 1.0
"""Between two looks at whether Ctrl-C was pressed: a signal just before a wait doesn't end it."""


class Line(NamedTuple):
    """A line without its end; `place` is for errors, `size_bytes` with its end."""

    place: str
    text: bytes
    size_bytes: int


def lines_of_file(path: Path) -> Iterator[Line]:
    """All lines of a file."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            yield Line(f"{path} line {number}", line.rstrip(b"\r\n"), len(line))


def lines_that_come(stream: io.BufferedReader, *, linger_s: float) -> Iterator[Line | None]:
    """Lines of standard input until its end.

    None comes between them once the oldest line since the last None was given `linger_s` ago, also
    where nothing follows: what was given should go on its way.

    Args:
        stream: read by nothing else. What has no descriptor never lets a reader wait.
    """
    number, begun = 0, [b""]
    send_s: float | None = None
    while True:
        if send_s is not None and not _has_more(stream, send_s - time.monotonic()):
            send_s = None
            yield None
        while not _has_more(stream, LOOK_S):
            pass
        # At most one read: `readline` would keep what follows in a buffer, which `select` can't
        # see, and `read` would wait for as many bytes as it is asked for.
        data = stream.read1(READ_BYTES)
        if not data:
            break
        first, *others = data.split(b"\n")
        begun.append(first)
        if not others:
            continue
        if send_s is None:
            send_s = time.monotonic() + linger_s
        for text in (b"".join(begun), *others[:-1]):
            number += 1
            yield _line(number, text, end_bytes=1)
        begun = [others[-1]]
    if rest := b"".join(begun):
        yield _line(number + 1, rest, end_bytes=0)


def _line(number: int, text: bytes, *, end_bytes: int) -> Line:
    return Line(f"standard input line {number}", text.rstrip(b"\r\n"), len(text) + end_bytes)


def _has_more(stream: io.BufferedReader, wait_s: float) -> bool:
    """Whether something, or the end, can be read within a time that isn't over."""
    if wait_s <= 0:
        return False
    try:
        descriptor = stream.fileno()
    except OSError:
        return True
    return bool(select.select([descriptor], [], [], wait_s)[0])
