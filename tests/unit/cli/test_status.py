"""`penstock status` against an HTTP port."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from click.testing import CliRunner

from penstock.cli.main import root
from penstock.model.errors import RetryableError
from support.http_stub import Agent


def test_a_script_waits_until_the_server_is_ready() -> None:
    def answer(number: int, handler: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        if number < 3:
            return 503, b'{"error": "not yet"}'
        return 200, b"ready" if handler.path == "/readyz" else b'{"version": "1"}'

    server = Agent(answer)
    try:
        result = CliRunner().invoke(root, ["status", "--http", server.url, "--wait", "600"])
    finally:
        server.close()
    assert result.output == "version  1\n"
    assert [path for _, path, *_ in server.asked] == ["/readyz"] * 3 + ["/v1/status"]


def test_a_script_does_not_wait_for_ever() -> None:
    result = CliRunner().invoke(root, ["status", "--http", "127.0.0.1:1", "--wait", "0.1"])
    assert isinstance(result.exception, RetryableError)
    assert "Connection refused" in str(result.exception)
