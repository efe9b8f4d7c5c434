"""Every request of the HTTP port passes here before it is routed: where it comes from, and who
sends it; then its route's rule is looked at.

The check comes before routing, so that no route can be forgotten, and before a body is read. An
answer that is still being sent when its caller's key is revoked ends there.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.app.http.callers import EVERYONE, Caller, Callers, DeniedError
from penstock.app.http.gate import HttpRefusal
from penstock.app.http.rules import RULES, Rule
from penstock.config.addresses import Address
from penstock.model.errors import RetryableError
from penstock.pipeline.api_messages import Problem
from penstock.security.errors import AuthenticationFailedError

logger = logging.getLogger(__name__)

HEALTH: Final = "/healthz"
_CALLER: Final = "penstock.caller"
_SUCCESS_END: Final = 400
DENIED_STATUS: Final = 403

TurnAway = Callable[[HttpRefusal, str, str], None]
"""Counts a refused request: the kind, the caller's address, and why, for the log."""


class CallerGoneError(Exception):
    """The caller's key was revoked while its answer was being sent: the connection ends."""


class Guard:
    """ASGI middleware that answers 403 to web pages and foreign hosts, 401 to strangers.

    Args:
        hosts: says whether a request may name a host; None: any.
        open_paths: paths that need no credential.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        *,
        turn_away: TurnAway,
        hosts: Callable[[str], bool] | None = None,
        open_paths: Sequence[str] = (HEALTH,),
    ) -> None:
        self.app = app
        self._callers = callers
        self._turn_away = turn_away
        self._hosts = hosts
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client")
        address = client[0] if client else "?"
        reason = self._foreign(headers)
        if reason:
            self._turn_away(HttpRefusal.HOST, address, reason)
            await refusal(403, "invalid", reason)(scope, receive, send)
            return
        if scope["path"] in self._open_paths:
            scope[_CALLER] = EVERYONE
            await self.app(scope, receive, send)
            return
        try:
            caller = self._callers.identify(headers.get(b"authorization"), address)
        except AuthenticationFailedError as error:
            self._turn_away(HttpRefusal.CREDENTIALS, address, error.detail)
            self._callers.note_stranger(address, f"{scope['method']} {scope['path']}")
            await _credential_needed()(scope, receive, send)
            return
        scope[_CALLER] = caller
        has_begun = is_over = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun, is_over
            if not caller.is_live:
                is_over = True
                raise CallerGoneError(caller.shown)
            if message["type"] == "http.response.start":
                has_begun = True
                if message["status"] == DENIED_STATUS:
                    self._turn_away(HttpRefusal.DENIED, address, f"{caller.principal} was denied")
            await send(message)

        try:
            await self.app(scope, receive, send_on)
        except Exception:
            # What sends may wrap the error, as tasks do.
            if not is_over:
                raise
            logger.info("ended an answer to %s: %s is revoked or over", address, caller.shown)
            if not has_begun:
                await _credential_needed()(scope, receive, send)
            # Else the server closes the connection, since the answer isn't whole.

    def _foreign(self, headers: dict[bytes, bytes]) -> str:
        """Say why a request is taken for one of a web page; "": it isn't.

        It has an `Origin`; or its `Host` is foreign, since the page's host name was pointed here
        (DNS rebinding), and then a browser sends no `Origin`.
        """
        if b"origin" in headers:
            return "web pages may not call this port"
        if self._hosts is not None and not self._hosts(_host(headers.get(b"host", b""))):
            return "this port is not served under the name in the Host header: see http_hosts"
        return ""


def local_hosts(names: str) -> Callable[[str], bool]:
    """Return what takes the loopback's hosts, and these names.

    Args:
        names: separated by commas.
    """
    allowed = frozenset(name.strip().lower() for name in names.split(",") if name.strip())
    return lambda host: host in allowed or (bool(host) and Address(host, 1).is_loopback)


def caller_of(request: Request) -> Caller:
    """Return who sends a request that has passed the guard."""
    caller: Caller = request.scope[_CALLER]
    return caller


def guarded(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return the routes with the checks of their rules in front of their handlers.

    Raises:
        AssertionError: a route has no rule.
    """
    found: list[BaseRoute] = []
    for route in routes:
        assert isinstance(route, Route), route
        methods = sorted(set(route.methods or ()) - {"HEAD"})
        rules = {RULES.get((method, route.path)) for method in methods}
        assert len(rules) == 1, f"{route.path} has several rules"
        rule = rules.pop()
        assert rule is not None, f"{methods} {route.path} has no rule in penstock.app.http.rules"
        found.append(Route(route.path, _checked(route, rule), methods=methods))
    return found


def _checked(route: Route, rule: Rule) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        caller = caller_of(request)
        if caller is not EVERYONE:
            caller.call = f"{request.method} {route.path}"
        try:
            if rule.cluster is not None:
                caller.need_cluster(rule.cluster)
            if rule.items:
                caller.has_asked = caller.is_unbounded
        except DeniedError as error:
            return refusal(403, "denied", str(error))
        except RetryableError as error:
            return refusal(503, "retry", str(error))
        response: Response = await route.endpoint(request)
        if rule.items and response.status_code < _SUCCESS_END and not caller.has_asked:
            raise AssertionError(f"{request.method} {route.path} has not asked what is allowed")
        return response

    return answer


def refusal(status: int, kind: str, text: str) -> Response:
    """Make the answer to a request that is not served to its caller."""
    body = msgspec.json.encode(Problem(error=text, kind=kind))
    headers = {"connection": "close"} if kind == "invalid" else {}
    return Response(body, status, headers, "application/json")


def _credential_needed() -> Response:
    headers = {"www-authenticate": 'Bearer realm="penstock"', "connection": "close"}
    text = "a credential is needed: the cluster's secret, an API key, or a token"
    body = msgspec.json.encode(Problem(error=text, kind="secret"))
    return Response(body, 401, headers, media_type="application/json")


def _host(header: bytes) -> str:
    """Return the host of a Host header, without its port and brackets."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return text if rest.strip(":0123456789") else host
    return text.rpartition(":")[0] if text.count(":") == 1 else text
