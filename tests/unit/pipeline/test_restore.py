"""A restore reads and copies objects that hold what the state names, and no others."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.restore import transfer_objects
from penstock.records.batch import CRC_FROM, stored_header
from penstock.recovery.due_runs import due_runs
from penstock.state.read.queries import Queries
from support.log_rig import Rig, run_rig

Objects = list[tuple[str, int]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of two partitions, and an object whose offsets aren't final."""

    async def fill(rig: Rig) -> None:
        keys = await rig.topic("t", partitions=2)
        (raw,) = await rig.topic("raw", **{"penstock.durability": "object"})
        for number in range(6):
            for key in keys:
                await rig.append(key, b"%d of %d" % (number, key & 1), b"and more")
            if number == 2:
                await rig.append(raw, b"x", b"y")
                await rig.drain()
        await rig.drain()

    path = tmp_path_factory.mktemp("filled") / "data"
    run_rig(path, fill)
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "parent"))


def objects_of(data: Path) -> Iterator[tuple[str, int, int]]:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        for row in queries.objects("", 99):
            yield row.key, row.size_bytes, row.raw


def transfer(data: Path, target: Path) -> None:
    listed = [(key, size) for key, size, _ in objects_of(data)]
    with due_runs(data / "metadata.sqlite") as due:
        assert all(due(key) for key, _ in listed)
        transfer_objects(LocalEngine(2), str(data / "objects"), str(target), listed, due=due)


def test_whole_objects_are_copied_and_the_state_is_as_it_was(data: Path, tmp_path: Path) -> None:
    assert {bool(raw) for _, _, raw in objects_of(data)} == {False, True}
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        before = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    transfer(data, tmp_path / "copy")
    for key, _, _ in objects_of(data):
        assert (tmp_path / "copy" / key).read_bytes() == (data / "objects" / key).read_bytes()
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        after = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    assert after == before


@pytest.mark.parametrize("raw", [False, True])
def test_an_object_of_another_history_is_refused(data: Path, tmp_path: Path, raw: bool) -> None:
    """Header, index and CRCs are right, and so are offsets and lengths."""
    key = next(key for key, _, its in objects_of(data) if bool(its) is raw)
    file = data / "objects" / key
    body = bytearray(file.read_bytes())
    header = stored_header(body, 16)
    batch = memoryview(body)[16 : 16 + header.length]
    batch[-2] ^= 1
    batch[17:21] = crc32c(batch[CRC_FROM:]).to_bytes(4, "big")
    file.write_bytes(body)
    with pytest.raises(CorruptDataError, match=f"1 objects aren't whole: restore {key}.*their sum"):
        transfer(data, tmp_path / "copy")
    assert not (tmp_path / "copy" / key).exists()


@pytest.mark.parametrize(
    "statement", ["UPDATE partitions SET log_start = next_offset", "DELETE FROM partitions"]
)
def test_runs_that_wait_to_be_cleared_are_not_looked_at(data: Path, statement: str) -> None:
    """Of a deleted topic nothing is known any more that its batches could be checked by."""
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection, connection:
        assert connection.execute(statement).rowcount
    with due_runs(data / "metadata.sqlite") as due:
        assert [due(key) for key, _, _ in objects_of(data)] == [[]] * len(list(objects_of(data)))
