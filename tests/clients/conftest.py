"""One server for the whole folder; PENSTOCK_TEST_BOOTSTRAP points the tests at another one.

Against Apache Kafka they prove that they expect what Kafka does:
`PENSTOCK_TEST_BOOTSTRAP=127.0.0.1:9092 pytest tests/clients`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import support.quiet
from support.server import ServerProcess

NAMES = count()
assert support.quiet  # imported for what it does


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the clients warn of inside themselves while they run is not ours either."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for module in ("kafka", "aiokafka", "importlib"):
                item.add_marker(
                    pytest.mark.filterwarnings(rf"ignore::DeprecationWarning:{module}\..*")
                )


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the server under test; its clean end is part of the proof."""
    elsewhere = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if elsewhere:
        yield elsewhere
        return
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    try:
        yield server.bootstrap
        assert server.running(), server.tail()
    finally:
        status = server.stop() if server.process is not None else None
    assert status == 0, server.tail()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that no other test, and no earlier run on the same broker, has used."""

    def make(kind: str) -> str:
        return f"{kind}-{os.getpid()}-{next(NAMES)}"

    return make


@pytest.fixture
def new_topic(bootstrap: str, name: Callable[[str], str]) -> Callable[..., str]:
    """Makes a topic with so many partitions and such configs, and gives its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from support.waiting import eventually

    admin = AdminClient({"bootstrap.servers": bootstrap})

    def make(partitions: int = 1, **configs: str) -> str:
        topic = name("topic")
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=wanted)]).values():
            future.result(60)

        def leaders() -> int:
            described = admin.list_topics(topic, timeout=60).topics[topic]
            return sum(p.leader >= 0 for p in described.partitions.values())

        eventually(leaders, lambda found: found == partitions)
        return topic

    return make
