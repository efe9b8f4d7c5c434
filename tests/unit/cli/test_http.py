"""Calls of a server's HTTP port carry the cluster's secret, as jobs' calls do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.client.http import call
from penstock.model.errors import InvalidRequestError
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
