"""Calls of an agent's HTTP port: agents in turn, back-off, a deadline, errors as Penstock's.

A connection that fails, a 5xx and a 503 with `retry` are tried again, at the next agent first; what
an agent refuses (4xx) never is. No text of an error holds a header.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3
from typing_extensions import Buffer
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    ReadTimeoutError,
)

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.malformed import MALFORMED
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.api_messages import Problem
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.backoff import Backoff

CONNECT_TIMEOUT_S: Final = 5.0
TELL_AFTER_S: Final = 1.0
"""A call that has failed for so many seconds is worth a line for people."""
CONNECTIONS_PER_AGENT: Final = 64
"""Kept; urllib3 warns of each that it drops."""
_BACKOFF: Final = Backoff(first_s=0.1, most_s=5.0)
_SHOWN_MAX: Final = 300
_JOB_OVER: Final = frozenset({"unknown_job", "job_too_old"})

Body = Sequence[Buffer]
"""A request's body in parts. A call that is tried again sends it from the start."""


class RefusedError(ConflictError):
    """A commit that never will be accepted. `reason`: a Refusal's name in lower case, or "".

    It is pickled with its reason.
    """

    def __init__(
        self, operation: str, subject: str, detail: str, hint: str = "", reason: str = ""
    ) -> None:
        super().__init__(operation, subject, detail, hint)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.operation, self.subject, self.detail, self.hint, self.reason)
        return RefusedError, fields


class DeniedError(InvalidRequestError):
    """The access rules don't let this client's principal do it."""


class HttpAnswer(NamedTuple):
    """A successful answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """Calls to any of several agents. Usable from any thread.

    Args:
        urls: the agents' HTTP ports: `http://HOST:PORT`, or `HOST:PORT`.
        timeout_s: of one try.
        deadline_s: of all tries of a call; no try begins after it.
        secret: gives the secret; called again when an agent doesn't know the last one.
        pause: lets seconds pass.
        tell: called with a line for people when a call goes on failing; once until a call succeeds.

    Raises:
        InvalidRequestError: no URL, or one that isn't.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        deadline_s: float,
        secret: Callable[[], ClusterSecret | None],
        clock: Clock,
        random: Random,
        pause: Callable[[float], None],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._urls = [_base_url(url) for url in urls]
        if not self._urls:
            raise InvalidRequestError("call agents", "url", "no agent is named")
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._find_secret = secret
        self._clock = clock
        self._random = random
        self._pause = pause
        self._tell = tell
        self._has_told = False
        self._lock = threading.Lock()
        self._secret: ClusterSecret | None = None
        self._secret_is_read = False
        self._current = random.below(len(self._urls))
        self._pool = urllib3.PoolManager(
            num_pools=len(self._urls) + 1, maxsize=CONNECTIONS_PER_AGENT, retries=False
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        operation: str,
        subject: str,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = (),
        deadline_s: float | None = None,
    ) -> HttpAnswer:
        """One call, tried until the deadline.

        Args:
            path: from the root on, quoted.
            operation, subject: for errors.
            deadline_s: instead of the transport's.

        Raises:
            RetryableError: no agent gave an answer in time.
            NotFoundError, InvalidRequestError, RefusedError: as the agent says.
            FencedError: the job is over.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        began_s = self._clock.monotonic_s()
        all_s = self._deadline_s if deadline_s is None else min(deadline_s, self._deadline_s)
        until_s = began_s + all_s
        rounds = 0
        while True:
            failure: RetryableError | None = None
            for _ in self._urls:
                url = self._urls[self._current % len(self._urls)]
                try:
                    answer = self._try(
                        method, url, target, operation, subject, headers or {}, body, until_s
                    )
                except RetryableError as error:
                    failure = error
                    self._current += 1
                else:
                    self._has_told = False
                    return answer
                now_s = self._clock.monotonic_s()
                if now_s >= until_s:
                    raise failure
                if now_s - began_s >= TELL_AFTER_S and not self._has_told:
                    self._has_told = True
                    self._tell(f"{failure}; trying again until {all_s:g} s have passed")
            assert failure is not None
            rounds += 1
            wait_s = _BACKOFF.jittered(rounds, self._random)
            if self._clock.monotonic_s() + wait_s >= until_s:
                raise failure
            self._pause(wait_s)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def _try(
        self,
        method: str,
        url: str,
        target: str,
        operation: str,
        subject: str,
        headers: Mapping[str, str],
        body: Body,
        until_s: float,
    ) -> HttpAnswer:
        secret = self._known_secret()
        answer = self._send(method, url, target, operation, subject, headers, body, until_s, secret)
        if answer.status == 401:
            # It may have been changed since it was read; else the answer stays what it is.
            secret = self._known_secret(again=True)
            answer = self._send(
                method, url, target, operation, subject, headers, body, until_s, secret
            )
        if 200 <= answer.status < 300:
            return answer
        raise _error(answer, f"{operation} by {url}", subject)

    def _send(
        self,
        method: str,
        url: str,
        target: str,
        operation: str,
        subject: str,
        headers: Mapping[str, str],
        body: Body,
        until_s: float,
        secret: ClusterSecret | None,
    ) -> HttpAnswer:
        sent = dict(headers)
        if secret is not None:
            sent["authorization"] = secret.header
        views: list[Any] = [memoryview(part).cast("B") for part in body]
        if views or method in {"POST", "PUT"}:
            sent["content-length"] = str(sum(map(len, views)))
        left_s = max(0.1, min(self._timeout_s, until_s - self._clock.monotonic_s()))
        try:
            response = self._pool.request(
                method,
                url + target,
                headers=sent,
                body=views or None,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, left_s), read=left_s),
            )
        except (HTTPError, OSError) as error:
            raise RetryableError(
                f"{operation} by {url}", subject, _reason(error), "does an agent serve there?"
            ) from error
        return HttpAnswer(
            response.status,
            {name.lower(): value for name, value in response.headers.items()},
            response.data,
        )

    def _known_secret(self, *, again: bool = False) -> ClusterSecret | None:
        with self._lock:
            if again or not self._secret_is_read:
                self._secret = self._find_secret()
                self._secret_is_read = True
            return self._secret


def _base_url(url: str) -> str:
    text = url.strip().rstrip("/")
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except (ValueError, LocationValueError):
        usable = False
    if not usable or parts.username or parts.query or parts.path:
        # Not repeated: it may hold a password.
        raise InvalidRequestError(
            "call agents", "url", "not http://HOST:PORT", "give agents' HTTP ports"
        )
    return text


def _reason(error: BaseException) -> str:
    """Say why a call failed. urllib3's own texts name objects of Python and numbers of errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, TimeoutError | ReadTimeoutError | ConnectTimeoutError):
        return "no answer in time"
    return type(error).__name__


def _error(answer: HttpAnswer, operation: str, subject: str) -> PenstockError:
    """Make the error of an answer that reports a failure."""
    try:
        problem = msgspec.json.decode(answer.body, type=Problem)
        text, kind, reason = problem.error, problem.kind, problem.reason
    except MALFORMED:
        text = answer.body[:_SHOWN_MAX].decode("latin-1").strip() or f"HTTP {answer.status}"
        kind, reason = "", ""
    status = answer.status
    if status >= 500 or status in {408, 429} or kind == "retry":
        return RetryableError(operation, subject, text)
    if status == 401:
        return InvalidRequestError(
            operation,
            subject,
            "a credential is needed: an API key, a token, or the cluster's secret",
            "set PENSTOCK_API_KEY, PENSTOCK_API_KEY_FILE, PENSTOCK_CLUSTER_SECRET or "
            "PENSTOCK_CLUSTER_SECRET_FILE where this runs",
        )
    if kind == "denied":
        return DeniedError(operation, subject, text)
    if status == 404 and kind == "not_found":
        return NotFoundError(operation, subject, text)
    if status == 404:
        return InvalidRequestError(
            operation, subject, text, "is this the HTTP port of an agent that serves jobs?"
        )
    if reason in _JOB_OVER:
        return FencedError(operation, subject, text, "the job is over: start it again")
    if reason == "corrupt_data":
        return CorruptDataError(operation, subject, text)
    if status == 409:
        return RefusedError(operation, subject, text, reason=reason)
    return InvalidRequestError(operation, subject, text)
