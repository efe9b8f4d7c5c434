"""A server process for the commands of a file of tests, and commands in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"DEFAULT_PARTITIONS": "1", "GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with running_server(tmp_path_factory.mktemp("broker"), settings) as server:
        yield server


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in this process sends logs to its standard error, which pytest closes."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[-40:]
