"""Servers that the tests of this folder share."""

import itertools
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.world import World
from support.agents import PATIENCE
from support.longest_first import begin_with
from support.postgres import PostgresServer, database_url, running_postgres
from support.s3 import S3Server, environment


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server; each test makes a bucket of its own."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "server.log").start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, found by this process through the environment."""
    for name, value in environment(s3_server.endpoint).items():
        monkeypatch.setenv(name, value)
    return s3_server


LONGEST_FIRST = ("test_restore", "test_workers", "test_groups_move", "test_upgrade", "test_away")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    begin_with(items, Path(__file__).parent, LONGEST_FIRST)


_journals = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL that lives through the run."""
    with database_url() as url:
        yield url


@pytest.fixture
def journal_name() -> str:
    """What the tables of this test begin with."""
    return f"t{os.getpid()}_{next(_journals)}"


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """One that may be killed and restarted."""
    with running_postgres() as server:
        yield server


STAYS = {"SEGMENT_AGE_MS": "3600000", "DELETE_GRACE_MS": "300000"}
"""What is in a WAL stays there, however long the tests take. Fetches go on without the journal for
half of the grace."""


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three agents, PostgreSQL, S3 behind a proxy, and links."""
    with World(tmp_path_factory.mktemp("world"), settings={**PATIENCE, **STAYS}) as world:
        yield world


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the world's agents have said is told with a failure."""
    report = yield
    world = getattr(item, "funcargs", {}).get("world")
    if report.failed and isinstance(world, World):
        ended = [agent.server.process for agent in world.agents.agents]
        statuses = [None if process is None else process.poll() for process in ended]
        report.sections.append((f"agents; exit statuses {statuses}", world.logs()))
    return report


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The same, whole again after each test."""
    shared_world.heal()
    yield shared_world
    shared_world.heal()
