"""Answers of the HTTP port that no call gives: all of them are problems of one form."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from penstock.app.http.callers import Caller, Callers, DeniedError
from penstock.app.http.gate import HttpGate, HttpLimits
from penstock.app.http_port import HttpSources, application
from penstock.kafka.access import OPEN, AclSettings, Authority
from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.api_messages import Problem
from penstock.security.principals import ANONYMOUS
from penstock.state.read.view import StateView
from penstock.system import SystemClock

SECRET = "0123456789abcdef"


class ThisBugError(Exception):
    pass


def fail() -> dict[str, Any]:
    raise ThisBugError("not for clients")


async def back_up(to: str, progress: object) -> dict[str, Any]:
    raise AssertionError("not asked for")


def ask(method: str, path: str, *, secret: str = "") -> tuple[int, dict[bytes, bytes], Problem]:
    """Status, headers and problem of the answer."""
    sources = HttpSources(
        metrics=Metrics(),
        status=fail,
        not_ready=str,
        back_up=back_up,
        callers=Callers(secret=ClusterSecret(secret) if secret else None),
    )
    gate = HttpGate("http", HttpLimits(), SystemClock(), lambda port, happened: None)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
    }

    async def main() -> None:
        # Our own errors are raised again after the answer.
        with contextlib.suppress(ThisBugError):
            await application(sources, gate)(scope, receive, send)

    asyncio.run(main())
    begin, *parts = sent
    headers = dict(begin["headers"])
    assert headers[b"content-type"] == b"application/json"
    body = b"".join(part["body"] for part in parts)
    return begin["status"], headers, msgspec.json.decode(body, type=Problem)


@pytest.mark.parametrize("path", ["/nothing", "/v1/agents", "/v1/pipeline/nothing"])
def test_a_call_that_this_server_does_not_have(path: str) -> None:
    status, _, problem = ask("GET", path)
    # Not `not_found`, which says that a topic or an object is gone.
    assert (status, problem.kind) == (404, "invalid")
    assert problem.error == (
        f"GET {path}: Not Found; docs/operations.md lists the calls of this port"
    )


def test_a_call_that_has_other_methods() -> None:
    status, headers, problem = ask("DELETE", "/v1/status")
    assert (status, problem.kind) == (405, "invalid")
    assert problem.error.startswith("DELETE /v1/status: Method Not Allowed")
    assert set(headers[b"allow"].split(b", ")) == {b"GET", b"HEAD"}


def test_a_long_path_is_not_repeated() -> None:
    _, _, problem = ask("GET", "/" + "x" * 10_000)
    assert len(problem.error) < 300


def test_an_error_of_the_servers_own() -> None:
    status, _, problem = ask("GET", "/v1/status")
    assert (status, problem.kind) == (500, "retry")
    assert problem.error == "ThisBugError in this server; its log has the traceback"


def test_a_call_without_the_secret() -> None:
    status, headers, problem = ask("GET", "/v1/status", secret=SECRET)
    assert (status, problem.kind) == (401, "secret")
    assert b"www-authenticate" in headers


def test_a_backup_needs_a_caller_that_shows_a_credential() -> None:
    authority = Authority(StateView(), AclSettings(), SystemClock(), None)
    sources = HttpSources(
        metrics=Metrics(),
        status=fail,
        not_ready=str,
        back_up=back_up,
        callers=Callers(authority=authority),
    )
    # Also where rules or super_users would allow it.
    with pytest.raises(DeniedError, match="credential"):
        sources.need_backup(Caller(ANONYMOUS, OPEN, "nothing"))
    sources.need_backup(Caller("User:admin", OPEN, "a key"))
