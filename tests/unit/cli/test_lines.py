"""Lines are the same however they come, and what came is not held back."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import lines as lines_module
from penstock.cli.lines import Lines, lines_of_file, lines_that_come


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


def came(chunks: list[bytes]) -> list[Lines]:
    return list(lines_that_come(io.BufferedReader(Chunks(chunks))))


def numbered(blocks: list[Lines]) -> list[tuple[str, int, bytes]]:
    return [
        (block.source, number, text)
        for block in blocks
        for number, text in enumerate(block.texts, start=block.first)
    ]


pieces = st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\n\n"])).map(b"".join))


@given(pieces)
def test_any_pieces_give_the_lines_of_a_file(chunks: list[bytes]) -> None:
    whole = io.BytesIO(b"".join(chunks))
    assert numbered(came(chunks)) == [
        ("standard input", number, line.rstrip(b"\r\n"))
        for number, line in enumerate(whole, start=1)
    ]
    assert sum(block.size_bytes for block in came(chunks)) <= len(whole.getvalue())


def test_a_files_lines_have_its_name(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"a\r\n\nb")
    blocks = list(lines_of_file(file))
    assert numbered(blocks) == [(str(file), 1, b"a"), (str(file), 2, b""), (str(file), 3, b"b")]
    assert sum(block.size_bytes for block in blocks) == file.stat().st_size


def test_a_line_is_there_as_soon_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LOOK_S", 0.01)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        blocks = lines_that_come(stream)
        os.write(writer, b"a\nb\nhalf")
        assert next(blocks).texts == [b"a", b"b"]
        # While nothing comes, whoever sends them may look after that.
        assert next(blocks).texts == []
        os.write(writer, b" a line\n")
        assert next(block.texts for block in blocks if block.texts) == [b"half a line"]
        os.close(writer)
        assert [block.texts for block in blocks if block.texts] == []


def test_the_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LOOK_S", 3600.0)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        os.write(writer, b"a\nb")
        os.close(writer)
        assert [block.texts for block in lines_that_come(stream)] == [[b"a"], [b"b"]]
