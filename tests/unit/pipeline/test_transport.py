"""Calls of agents: who is asked, how often, and what an answer means."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.secret import find_secret
from penstock.pipeline.transport import RefusedError, Transport
from support.http_stub import Agent, Answer
from support.ports import free_port
from support.simulated.clock import ManualClock
from support.simulated.randomness import SeededRandom


@contextmanager
def agents(
    *answers: Callable[[int, BaseHTTPRequestHandler, bytes], Answer],
) -> Iterator[list[Agent]]:
    made = [Agent(answer) for answer in answers]
    try:
        yield made
    finally:
        for agent in made:
            agent.close()


def problem(status: int, kind: str, reason: str = "") -> Answer:
    return status, json.dumps({"error": "what it says", "kind": kind, "reason": reason}).encode()


class Waits:
    """Lets a manual clock pass instead of time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waited: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.clock.advance(seconds)


def transport(
    *urls: str,
    waits: Waits | None = None,
    deadline_s: float = 20.0,
    secret: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> Transport:
    waits = waits or Waits()
    return Transport(
        urls,
        timeout_s=60,
        deadline_s=deadline_s,
        secret=lambda: ClusterSecret(secret) if secret else None,
        clock=waits.clock,
        random=SeededRandom(1),
        pause=waits,
        tell=tell,
    )


def call(transport: Transport, method: str = "GET", body: bytes = b"") -> bytes:
    answer = transport.call(
        method, "/x", operation="ask", subject="something", body=(body,) if body else ()
    )
    return answer.body


def test_the_next_agent_is_asked_and_stayed_with() -> None:
    with agents(
        lambda *_: problem(503, "retry"), lambda *_: (200, b"good"), lambda *_: (0, b"")
    ) as made:
        waits = Waits()
        api = transport(*(agent.url for agent in made), waits=waits)
        for _ in range(5):
            assert call(api, "POST", b"abc") == b"good"
        assert not waits.waited, "nobody waits while another agent may answer"
        assert len(made[0].asked) <= 1
        assert len(made[2].asked) <= 2
        assert [asked[3] for asked in made[1].asked] == [b"abc"] * 5
        api.close()


def test_what_is_retried_waits_longer_and_longer_until_the_deadline() -> None:
    with agents(lambda *_: problem(503, "retry")) as (agent,):
        waits = Waits()
        api = transport(agent.url, f"127.0.0.1:{free_port()}", waits=waits, deadline_s=20.0)
        with pytest.raises(RetryableError):
            call(api)
        assert sum(waits.waited) < 20
        assert 5 < len(waits.waited) < 100
        assert all(0 < waited <= 5 for waited in waits.waited)
        assert len(agent.asked) == len(waits.waited) + 1
        api.close()


def test_an_agent_that_does_not_run_is_named_with_the_reason() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RetryableError) as raised:
        transport(url, waits=Waits()).call("GET", "/", operation="list", subject="topics")
    expected = f"list by {url} topics: Connection refused (does an agent serve there?)"
    assert str(raised.value) == expected


@pytest.mark.slow
def test_people_hear_once_and_soon_of_agents_that_are_away() -> None:
    with agents(lambda count, *_: (200, b"back") if count == 20 else (500, b"oops")) as (agent,):
        waits, told = Waits(), list[tuple[float, str]]()
        began_s = waits.clock.monotonic_s()

        def tell(text: str) -> None:
            told.append((waits.clock.monotonic_s() - began_s, text))

        api = transport(agent.url, waits=waits, deadline_s=500.0, tell=tell)
        assert call(api) == b"back"
        ((after_s, text),) = told
        assert 1 <= after_s < 6, "and not in the first second, in which an agent may be restarted"
        assert text == f"ask by {agent.url} something: oops; trying again until 500 s have passed"
        with pytest.raises(RetryableError):
            call(api)
        assert len(told) == 2, "it had been back"
        api.close()


def test_a_call_succeeds_once_an_agent_is_back() -> None:
    with agents(lambda count, *_: (200, b"back") if count > 4 else (500, b"oops")) as (agent,):
        api = transport(agent.url)
        assert call(api) == b"back"
        assert len(agent.asked) == 5
        api.close()


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (problem(400, "invalid"), InvalidRequestError, None),
        (problem(403, "invalid"), InvalidRequestError, None),
        (problem(404, "not_found"), NotFoundError, None),
        ((404, b"Not Found"), InvalidRequestError, None),
        (problem(409, "refused", "unknown_job"), FencedError, None),
        (problem(409, "refused", "job_too_old"), FencedError, None),
        (problem(409, "refused", "stale_write"), RefusedError, "stale_write"),
        (problem(409, "refused"), RefusedError, ""),
    ],
)
def test_what_is_refused_is_asked_once(
    answer: Answer, kind: type[PenstockError], reason: str | None
) -> None:
    with agents(lambda *_: answer, lambda *_: answer) as made:
        waits = Waits()
        api = transport(*(agent.url for agent in made), waits=waits)
        with pytest.raises(PenstockError) as caught:
            call(api, "POST", b"x")
        assert type(caught.value) is kind
        assert sum(len(agent.asked) for agent in made) == 1
        assert not waits.waited
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)
        if reason is not None:
            assert again.reason == reason
        api.close()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    def answer(count: int, handler: BaseHTTPRequestHandler, _: bytes) -> Answer:
        if count > 2:
            return 200, b"whole"
        handler.send_response(200)
        handler.send_header("content-length", "100")
        handler.end_headers()
        handler.wfile.write(b"half")
        return 0, b""

    with agents(answer) as (agent,):
        api = transport(agent.url)
        assert call(api) == b"whole"
        api.close()


def test_the_secret_is_sent_and_a_wrong_one_is_no_reason_to_wait() -> None:
    with agents(lambda *_: (401, b"the cluster's secret is needed\n")) as (agent,):
        waits = Waits()
        api = transport(agent.url, waits=waits, secret="0123456789abcdef")
        with pytest.raises(InvalidRequestError, match="PENSTOCK_CLUSTER_SECRET"):
            call(api)
        assert not waits.waited
        assert {asked[2]["authorization"] for asked in agent.asked} == {"Bearer 0123456789abcdef"}
        api.close()


@pytest.mark.parametrize(
    "url", ["", "ftp://x:1", "http://user:secret-word@x:1", "http://x:1/path", "http://x:99999"]
)
def test_urls_that_are_none_are_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        PipelineClient(ClientOptions(urls=(url,)))
    assert "secret-word" not in str(caught.value)
    with pytest.raises(InvalidRequestError):
        PipelineClient(ClientOptions(urls=()))
    with pytest.raises(InvalidRequestError):
        PipelineClient(ClientOptions(urls=("x:1",), objects="somehow"))


def test_where_the_secret_is_found(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_CLUSTER_SECRET", "PENSTOCK_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert find_secret() is None
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", "of-the-environment")
    found = find_secret()
    assert found is not None
    assert found.header == "Bearer of-the-environment"
    path = tmp_path / "secret"  # type: ignore[operator]
    path.write_text("of-a-file-0123456789\n")
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET_FILE", str(path))
    found = find_secret()
    assert found is not None
    assert found.header == "Bearer of-a-file-0123456789"
    with pytest.raises(InvalidRequestError):
        find_secret(str(path) + "-not-there")
