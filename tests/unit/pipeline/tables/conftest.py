from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import ApiServer, serve_in_thread
from support.registry import Registry, serve_registry
from support.tables import Lake

_names = itertools.count(1)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


@pytest.fixture
def topic(api: ApiServer) -> str:
    """A topic of two partitions, with a dead-letter topic."""
    name = f"topic{next(_names)}"
    api.create(name, 2)
    api.create(f"{name}.dlq", 1)
    return name


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with serve_registry() as registry:
        yield registry


@pytest.fixture
def registry(served: Registry) -> Registry:
    served.failures, served.user = 0, ""
    served.schemas.clear()
    served.versions.clear()
    served.asked.clear()
    return served
