"""Calls of a server's HTTP port: the cluster's secret, progress, and answers that are cut off."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.client.http import call, call_with_progress
from penstock.model.errors import InvalidRequestError, PenstockError, RetryableError
from support.http_stub import Agent

SECRET = "a-secret-of-tests-0123456789"


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    for name in ("PENSTOCK_CLUSTER_SECRET", "PENSTOCK_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    agent = Agent(
        lambda _number, request, _body: (
            (200, b"{}")
            if request.headers["authorization"] == f"Bearer {SECRET}"
            else (401, b'{"error": "no"}')
        )
    )
    yield agent
    agent.close()


def test_without_a_secret_none_is_sent_and_the_error_says_what_to_set(agent: Agent) -> None:
    with pytest.raises(InvalidRequestError, match="PENSTOCK_CLUSTER_SECRET_FILE"):
        call("ask", agent.url, "/", timeout_s=60)
    assert "authorization" not in agent.asked[0][2]


def test_the_secret_is_that_of_the_environment(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    assert call("ask", agent.url, "/", timeout_s=60) == {}


def test_a_file_with_the_secret_wins(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", "another-secret-of-tests")
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET_FILE", str(file))
    assert call("ask", agent.url, "/", timeout_s=60) == {}
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET_FILE", str(tmp_path / "missing"))
    with pytest.raises(InvalidRequestError, match="missing"):
        call("ask", agent.url, "/", timeout_s=60)


HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
CUT_ANSWERS = {
    "short": HEAD + b'content-length: 100\r\n\r\n{"done": 1,',
    "chunk": HEAD + b'transfer-encoding: chunked\r\n\r\n40\r\n{"done": 1,',
    "between chunks": HEAD + b'transfer-encoding: chunked\r\n\r\n4\r\n{"do\r\n',
}


@pytest.fixture(params=CUT_ANSWERS)
def dying(request: pytest.FixtureRequest) -> Iterator[Agent]:
    """A server that ends in the middle of an answer."""

    def answer(_: int, handler: BaseHTTPRequestHandler, __: bytes) -> tuple[int, bytes]:
        handler.wfile.write(CUT_ANSWERS[request.param])
        return 0, b""

    agent = Agent(answer)
    yield agent
    agent.close()


def test_an_answer_that_is_cut_off_is_an_error_that_can_be_tried_again(dying: Agent) -> None:
    with pytest.raises(RetryableError, match="cut off"):
        call("ask", dying.url, "/", timeout_s=60)
    with pytest.raises(RetryableError, match="cut off"):
        progress_of(dying, [])


def progress_of(agent: Agent, seen: list[tuple[int, int]]) -> dict[str, Any]:
    def watch(done: int, total: int) -> None:
        seen.append((done, total))

    return call_with_progress("scan", agent.url, "/", body={}, result="scanned", watch=watch)


@pytest.mark.parametrize(
    ("last", "error", "text"),
    [
        (b'{"scanned": {"runs": 2}}\n', None, ""),
        (b'{"error": "no space"}\n', InvalidRequestError, "no space"),
        (b"", RetryableError, "the server ended before the work did"),
    ],
)
def test_progress_is_told_until_what_came_of_it(
    last: bytes, error: type[PenstockError] | None, text: str
) -> None:
    seen: list[tuple[int, int]] = []
    agent = Agent(lambda *_: (200, b'{"done": 1, "total": 9}\n{"done": 5, "total": 9}\n' + last))
    try:
        if error is None:
            assert progress_of(agent, seen) == {"runs": 2}
        else:
            with pytest.raises(error, match=text):
                progress_of(agent, seen)
    finally:
        agent.close()
    assert seen == [(1, 9), (5, 9)]
