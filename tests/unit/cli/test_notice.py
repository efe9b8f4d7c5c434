"""A command that no server answers says so before it gives up."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.cli.client import notice
from penstock.cli.client.connection import Connection
from penstock.cli.client.http import call
from penstock.cli.pipeline_options import open_client
from penstock.config.addresses import Address
from penstock.model.errors import RetryableError
from penstock.pipeline import transport
from penstock.pipeline.client import ClientOptions
from support.http_stub import Agent
from support.ports import free_port


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """A port where connections are made and nothing answers; commands lose patience soon."""
    monkeypatch.setattr(notice, "TELL_AFTER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address("127.0.0.1", server.getsockname()[1])


def test_a_server_of_kafkas_protocol_that_does_not_answer_is_named(
    silent: Address, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RetryableError, match="no answer in time"):
        Connection(silent, timeout_s=0.5)
    assert capsys.readouterr().err == (
        f"penstock: no answer from {silent} in 0.05 s; waiting until 0.5 s have passed\n"
    )


def test_an_http_port_that_does_not_answer_is_named(
    silent: Address, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RetryableError, match="no answer in time"):
        call("ask", str(silent), "/", timeout_s=0.5)
    assert f"no answer from http://{silent} in 0.05 s" in capsys.readouterr().err


def test_nothing_is_said_of_a_server_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(lambda *_: (200, b"{}"))
    try:
        assert call("ask", agent.url, "/", timeout_s=60) == {}
    finally:
        agent.close()
    assert capsys.readouterr().err == ""


def test_a_job_whose_agents_are_away_says_so_while_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transport, "TELL_AFTER_S", 0.0)
    url = f"http://127.0.0.1:{free_port()}"
    with (
        open_client(ClientOptions(urls=(url,), deadline_s=0.5)) as client,
        pytest.raises(RetryableError, match="Connection refused"),
    ):
        client.info()
    assert capsys.readouterr().err == (
        f"penstock: ask by {url} agent: Connection refused (does an agent serve there?);"
        " trying again until 0.5 s have passed\n"
    )
