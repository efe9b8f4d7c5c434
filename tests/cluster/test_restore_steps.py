"""A cluster's restore is cut after each of its steps, on a real PostgreSQL.

Whatever is left is no cluster, or all of one: no agent begins without the restored state, also
where the store's listings show nothing yet.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typing_extensions import Buffer

from penstock.log.opening.cluster import open_cluster_order
from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.objects import open_reliable_store
from penstock.order.protocol import AgentIdentity
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.recovery import cluster
from penstock.recovery.cluster import NewCluster
from penstock.recovery.point_in_time import Moment
from penstock.replica import postgres
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SNAPSHOTS_PREFIX
from penstock.replica.beginning import Beginning
from penstock.replica.postgres import PostgresJournal, PostgresSettings, begin_journal
from penstock.replica.postgres import begin as begin_module
from penstock.replica.postgres.statements import Statements
from penstock.replica.postgres.tables import open_tables
from penstock.state.read.queries import Queries
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.agents import PATIENCE, Agents
from support.old_release import unpack_release
from support.postgres import PATIENT
from support.restored_clusters import bucket_on_disk
from support.server import ServerFailedError

SETTINGS = PostgresSettings(**PATIENT)


class Cut(BaseException):
    """The restore's process is gone."""


class Cuttable:
    """A store that ends the process at a put or delete: before it or after it."""

    def __init__(self, store: ObjectStore, step: Callable[[str], None]) -> None:
        self._store = store
        self._step = step

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._step(f"before put {key.split('/')[0]}")
        await self._store.put(key, parts, if_absent=if_absent)
        self._step(f"after put {key.split('/')[0]}")

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        return await self._store.get_range(key, start, end)

    async def size(self, key: str) -> int:
        return await self._store.size(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix, after=after)


class ShowsNothing(Cuttable):
    """Its listings lag."""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in ():
            yield info


@dataclass
class Place:
    """Where a cluster is restored from and to."""

    parent: Path
    objects: Path
    journal: str
    name: str

    def restore(self) -> dict[str, Any]:
        return asyncio.run(
            cluster.restore_cluster(
                str(self.parent),
                NewCluster(objects=str(self.objects), journal=self.journal, name=self.name),
                moment=Moment(),
                allow_loss=True,
                clock=SystemClock(),
                random=SystemRandom(),
            )
        )

    def topics_of_an_agent(self, path: Path) -> list[str]:
        """What an agent has that starts now, on the journal that there is."""

        async def start() -> None:
            journal = await PostgresJournal.open(self.journal, name=self.name, settings=SETTINGS)
            with ThreadPoolExecutor(1) as applier:
                order = await open_cluster_order(
                    journal,
                    Archive(
                        ShowsNothing(store_at(self.objects), lambda _: None),
                        cluster_id=journal.cluster_id,
                        scratch=path.parent / "scratch",
                        executor=None,
                    ),
                    path,
                    identity=AgentIdentity(agent_id=1, level_max=FEATURE_LEVEL_MAX),
                    cluster_id=journal.cluster_id,
                    clock=SystemClock(),
                    random=SystemRandom(),
                    executor=applier,
                )
                await order.start()
                assert order.position > 1, "its epoch is open"
                await order.close()

        asyncio.run(start())
        with closing(Queries(path)) as queries:
            return sorted(topic.name for topic in queries.topic_rows())

    def has_journal(self) -> bool:
        async def look() -> bool:
            try:
                journal = await PostgresJournal.open(
                    self.journal, name=self.name, settings=SETTINGS
                )
            except NotFoundError:
                return False
            await journal.close()
            return True

        return asyncio.run(look())


def store_at(folder: Path) -> ObjectStore:
    return open_reliable_store(str(folder), clock=SystemClock(), random=SystemRandom())


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bucket of a cluster of which nothing else is left."""
    return bucket_on_disk(tmp_path_factory.mktemp("parent"))


@pytest.fixture
def place(parent: Path, postgres_url: str, journal_name: str, tmp_path: Path) -> Place:
    return Place(parent=parent, objects=tmp_path / "new", journal=postgres_url, name=journal_name)


def cut_at(monkeypatch: pytest.MonkeyPatch, objects: Path, wanted: str) -> None:
    """End the process of a restore at a step of that name."""

    def step(name: str) -> None:
        if name == wanted:
            raise Cut

    open_store = cluster._open

    def opened(location: str, **ports: Any) -> Any:
        store = open_store(location, **ports)
        return Cuttable(store, step) if location == str(objects) else store

    async def begin(url: str, **arguments: Any) -> None:
        step("before the journal")
        await begin_journal(url, **arguments)
        step("after the journal")

    monkeypatch.setattr(cluster, "_open", opened)
    monkeypatch.setattr(postgres, "begin_journal", begin)


@pytest.mark.parametrize(
    "step", ["before put archive", "after put archive", "before the journal", "after the journal"]
)
def test_what_a_cut_restore_leaves_is_no_cluster_or_all_of_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    with monkeypatch.context() as patch:
        cut_at(patch, place.objects, step)
        with pytest.raises(Cut):
            place.restore()
    is_whole = step == "after the journal"
    assert place.has_journal() is is_whole
    if step == "before put archive":
        place.restore()
    elif not is_whole:
        # Its snapshot may be that of a cluster whose journal is elsewhere: nothing can tell.
        with pytest.raises(
            InvalidRequestError, match=r"there already.*delete the objects that it left"
        ):
            place.restore()
        for path in (place.objects / SNAPSHOTS_PREFIX).iterdir():
            path.unlink()
        place.restore()
    assert "t" in place.topics_of_an_agent(tmp_path / "agent" / "replica.sqlite")
    with pytest.raises(InvalidRequestError, match="it is there already"):
        place.restore()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()


def test_an_older_releases_agent_never_begins_with_nothing(place: Place, tmp_path: Path) -> None:
    """It reads no newer state, and knows that a journal which begins later needs one."""
    place.restore()
    agents = Agents(
        tmp_path,
        place.journal,
        str(place.objects),
        settings={**PATIENCE, "CLUSTER_NAME": place.name},
    )
    server = agents.prepare().server
    server.environment["PYTHONPATH"] = str(unpack_release(3, tmp_path / "release"))
    with pytest.raises(ServerFailedError, match=r"format version \d+"):
        server.start()
    for path in (place.objects / SNAPSHOTS_PREFIX).iterdir():
        path.unlink()
    with pytest.raises(
        ServerFailedError, match="the journal begins at position 2, and there is no"
    ):
        server.start()


def test_tables_without_rows_are_no_journal(place: Place, tmp_path: Path) -> None:
    """The process that made them is gone."""
    with psycopg.connect(place.journal, autocommit=True) as connection:
        for sql in Statements(place.name).create:
            connection.execute(sql.encode())
    assert not place.has_journal()
    place.restore()
    assert "t" in place.topics_of_an_agent(tmp_path / "agent" / "replica.sqlite")


def test_rows_without_a_cluster_are_left_alone(place: Place) -> None:
    with psycopg.connect(place.journal, autocommit=True) as connection:
        for sql in Statements(place.name).create:
            connection.execute(sql.encode())
        connection.execute(
            f"INSERT INTO {place.name}_journal (stamp_ms, body) VALUES (0, 'x')".encode()
        )
    with pytest.raises(ConflictError, match="rows in them and no cluster"):
        place.restore()
    assert list((place.objects / SNAPSHOTS_PREFIX).iterdir()) == [], "it is taken back"
    assert not place.has_journal()


def test_of_two_that_make_one_journal_the_second_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Beginning(cluster_id="another-cluster-000001", position=1, digest=bytes(32))

    async def second(url: str, **arguments: Any) -> None:
        await begin_journal(url, name=place.name, beginning=other)
        await begin_journal(url, **arguments)

    monkeypatch.setattr(postgres, "begin_journal", second)
    with pytest.raises(ConflictError, match="of cluster another-cluster-000001"):
        place.restore()
    assert list((place.objects / SNAPSHOTS_PREFIX).iterdir()) == []


def test_a_journal_whose_making_was_not_answered_is_found_made(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The database made it, and the connection broke before its answer."""
    answers: list[str] = []

    async def unanswered(*arguments: Any) -> str:
        answers.append(await open_tables(*arguments))
        if len(answers) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answers[-1]

    monkeypatch.setattr(begin_module, "open_tables", unanswered)
    assert place.restore()["cluster_id"] == answers[0] == answers[1]
    assert "t" in place.topics_of_an_agent(tmp_path / "agent" / "replica.sqlite")


def test_two_restores_of_one_bucket_are_two_clusters(
    place: Place, tmp_path: Path, journal_name: str
) -> None:
    second = Place(
        parent=place.parent,
        objects=tmp_path / "second",
        journal=place.journal,
        name=f"{journal_name}_second",
    )
    made = [found.restore()["cluster_id"] for found in (place, second)]
    assert len(set(made)) == 2
    for number, found in enumerate((place, second)):
        path = tmp_path / "agent" / f"{number}.sqlite"
        assert "t" in found.topics_of_an_agent(path)
