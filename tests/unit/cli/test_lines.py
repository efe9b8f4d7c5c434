"""Lines are the same however they come, and what came is not held back."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.lines import Line, lines_of_file, lines_that_come

LONG_S = 3600.0


class Chunks(io.RawIOBase):
    """What comes in these pieces."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._chunks:
            return 0
        chunk = self._chunks.pop(0)
        assert len(chunk) <= len(buffer)
        buffer[: len(chunk)] = chunk
        return len(chunk)


def came(chunks: list[bytes], linger_s: float) -> list[Line | None]:
    return list(lines_that_come(io.BufferedReader(Chunks(chunks)), linger_s=linger_s))


pieces = st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\n\n"])).map(b"".join))


@given(pieces)
def test_any_pieces_give_the_lines_of_a_file(chunks: list[bytes]) -> None:
    expected = [
        (f"standard input line {number}", line.rstrip(b"\r\n"), len(line))
        for number, line in enumerate(io.BytesIO(b"".join(chunks)), start=1)
    ]
    assert came(chunks, LONG_S) == expected
    assert [line for line in came(chunks, 0.0) if line] == expected


def test_a_files_lines_have_its_name(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"a\r\n\nb")
    assert list(lines_of_file(file)) == [
        (f"{file} line 1", b"a", 3),
        (f"{file} line 2", b"", 1),
        (f"{file} line 3", b"b", 1),
    ]


def test_what_never_pauses_is_sent_too() -> None:
    lines = came([b"a\nb", b"\n", b"c", b"d\n"], 0.0)
    texts = [line and line.text for line in lines]
    assert texts == [b"a", None, b"b", None, b"cd", None]


def test_what_pauses_is_sent_once_and_then_waited_for() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        lines = lines_that_come(stream, linger_s=0.01)
        os.write(writer, b"a\nb\nhalf")
        assert [line and line.text for line in (next(lines), next(lines), next(lines))] == [
            b"a",
            b"b",
            None,
        ]
        os.write(writer, b" a line\n")
        assert [line and line.text for line in (next(lines), next(lines))] == [b"half a line", None]
        os.close(writer)
        assert list(lines) == []


def test_the_end_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        os.write(writer, b"a\nb")
        os.close(writer)
        texts = [line and line.text for line in lines_that_come(stream, linger_s=LONG_S)]
        assert texts == [b"a", b"b"]
