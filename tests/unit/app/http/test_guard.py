"""The guard: web pages, strangers, and answers whose caller's key is revoked meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.app.http.callers import Callers
from penstock.app.http.gate import HttpRefusal
from penstock.app.http.guard import Guard, caller_of, guarded, local_hosts
from penstock.kafka.access import AclSettings, Authority
from penstock.security.api_key import ApiKey, digest_of, new_key
from penstock.state.read.view import StateView
from penstock.system import SystemClock

KEY_ID, SECRET, TEXT = new_key(b"12345678", b"s" * 32)
KEY = ApiKey(key_id=KEY_ID, digest=digest_of(SECRET), principal="User:alice")
BEARER = {"authorization": f"Bearer {TEXT}"}


class Port:
    """A guarded application, with a key that tests revoke."""

    def __init__(self, routes: list[Route], *, hosts: str | None = None, **changes: Any) -> None:
        self.keys = {KEY_ID: KEY}
        self.turned_away: list[HttpRefusal] = []
        authority = Authority(StateView(), AclSettings(**changes), SystemClock(), None)
        self._app = Guard(
            Starlette(routes=routes),
            Callers(authority=authority, keys=lambda: self.keys),
            turn_away=lambda refusal, *_: self.turned_away.append(refusal),
            hosts=None if hosts is None else local_hosts(hosts),
        )

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        """Status and body of the answer, as far as they came; status 0: nothing came."""
        sent: list[Any] = []

        received: list[dict[str, Any]] = [{"type": "http.request", "body": b""}]

        async def receive() -> dict[str, Any]:
            if not received:
                await asyncio.Event().wait()
            return received.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
            "client": ("10.0.0.1", 1),
            "http_version": "1.1",
            "scheme": "http",
        }
        await self._app(scope, receive, send)
        body = b"".join(each.get("body", b"") for each in sent[1:])
        return (sent[0]["status"] if sent else 0), body


async def _who(request: Request) -> Response:
    return PlainTextResponse(caller_of(request).principal)


WHO = Route("/who", _who)


async def test_who_calls_is_known_before_routing() -> None:
    port = Port([WHO])
    assert await port.ask("/who", **BEARER) == (200, b"User:alice")
    assert await port.ask("/who") == (200, b"User:ANONYMOUS")
    assert (await port.ask("/who", authorization="Bearer wrong"))[0] == 401
    assert (await port.ask("/nothing", authorization="Bearer wrong"))[0] == 401
    assert port.turned_away == [HttpRefusal.CREDENTIALS] * 2


async def test_web_pages_are_refused_on_every_path() -> None:
    port = Port([WHO])
    for path in ("/who", "/healthz", "/metrics", "/v1/pipeline/info", "/nothing"):
        assert (await port.ask(path, origin="null", **BEARER))[0] == 403
    assert port.turned_away == [HttpRefusal.HOST] * 5


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("127.9.9.9:1", 200),
        ("[::1]:8080", 200),
        ("::1", 200),
        ("log.example", 200),
        ("LOG.example:80", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("log.example.evil", 403),
        ("10.0.0.1", 403),
        ("", 403),
        ("127.0.0.1:80:80", 403),
        ("[::1].evil.example", 403),
        ("[::1]x", 403),
    ],
)
async def test_hosts_of_the_machine_and_of_the_setting_are_taken(host: str, status: int) -> None:
    port = Port([WHO], hosts="log.example, other.example")
    assert (await port.ask("/who", host=host))[0] == status


async def test_an_answer_ends_where_its_key_is_revoked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def stream(_: Request) -> Response:
        async def parts() -> Any:
            yield b"one"
            del port.keys[KEY_ID]
            yield b"two"

        return StreamingResponse(parts())

    port = Port([Route("/stream", stream)])
    status, body = await port.ask("/stream", **BEARER)
    assert (status, body) == (200, b"one")
    assert f"key {KEY_ID} is revoked or over" in caplog.text


async def test_an_answer_does_not_begin_after_its_key_is_revoked() -> None:
    async def late(_: Request) -> Response:
        del port.keys[KEY_ID]
        return PlainTextResponse("secret")

    port = Port([Route("/late", late)])
    status, body = await port.ask("/late", **BEARER)
    assert status == 401
    assert b"secret" not in body.replace(b'"kind":"secret"', b"").replace(b"cluster's secret", b"")


async def test_the_rule_of_a_route_comes_before_its_handler() -> None:
    async def never(_: Request) -> Response:
        raise AssertionError("the rule doesn't allow it")

    routes: Any = guarded([Route("/v1/status", never)])
    port = Port(routes)
    status, body = await port.ask("/v1/status", **BEARER)
    assert status == 403
    assert b'"kind":"denied"' in body
    assert b"describe cluster" in body
    assert port.turned_away == [HttpRefusal.DENIED]


async def test_a_handler_that_forgets_to_ask_answers_nobody() -> None:
    async def forgets(_: Request) -> Response:
        return PlainTextResponse("records")

    routes: Any = guarded([Route("/v1/pipeline/records", forgets)])
    port = Port(routes, super_users=frozenset({"User:root"}))
    with pytest.raises(AssertionError, match="has not asked"):
        await port.ask("/v1/pipeline/records", **BEARER)
