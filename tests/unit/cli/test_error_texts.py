"""Errors of commands say in one line what failed and why, without numbers of the system's
errors."""

from __future__ import annotations

import http.server
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import _run
from penstock.cli.tables import counted

RAW = re.compile(r"\[Errno|HTTP Error|Traceback|urlopen|<[A-Za-z.]+ object|\w+Error\b")
"""What Python's own texts of errors have, and ours don't."""

OVER_KAFKA = (
    ("topic", "list"),
    ("topic", "create", "t"),
    ("produce", "t", "lines.txt"),
    ("consume", "t", "--until-end"),
    ("group", "list"),
    ("group", "describe", "g"),
)
OVER_HTTP = (
    ("status",),
    ("agent", "list"),
    ("agent", "remove", "3"),
    ("backup", "--to", "backup"),
    ("repair",),
)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of the loopback that is bound, and on which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def another_server() -> Iterator[int]:
    """An HTTP server that knows no path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def error_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """Call a command that fails; return its only line."""
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    assert _run() == 1
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("penstock: ")
    assert not RAW.search(line), line
    return line


@pytest.mark.parametrize("arguments", OVER_KAFKA + OVER_HTTP, ids=" ".join)
def test_a_server_that_does_not_run(
    arguments: tuple[str, ...],
    closed_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("hello\n", "utf-8")
    option = "--server" if arguments in OVER_KAFKA else "--http"
    line = error_of(monkeypatch, capsys, *arguments, option, f"127.0.0.1:{closed_port}")
    assert f"127.0.0.1:{closed_port}" in line
    assert "Connection refused" in line
    assert "is a server running there?" in line


def test_an_http_server_of_another_kind(
    another_server: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_of(monkeypatch, capsys, "status", "--http", f"127.0.0.1:{another_server}")
    assert line.endswith("status 404 Not Found, so it may not be a Penstock server")


def test_a_file_that_can_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    data = tmp_path / "file" / "data"
    line = error_of(monkeypatch, capsys, "serve", "--data", str(data))
    assert line == f"penstock: {tmp_path / 'file'}: File exists"


def test_counts_have_the_right_number() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(0, "record") == "0 records"
    assert counted(1_234, "entry", "entries") == "1,234 entries"
