"""What must lie in an object is what a state still names there."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError
from penstock.recovery.due_runs import check_object, due_runs
from support.log_rig import Rig, run_rig
from support.rot import flip, object_path, runs_of


def test_runs_that_were_trimmed_and_not_cleared_yet_are_not_due(tmp_path: Path) -> None:
    """A rotten one of them stops no backup."""
    keys = []

    async def fill(rig: Rig) -> None:
        for key in await rig.topic("t", 2):
            await rig.append(key, b"v")
            keys.append(key)
        await rig.drain()
        for key in keys:
            (run,) = runs_of(rig, key)
        path = object_path(rig, run)
        objects[run.object_key] = path
        flip(path, run.position + run.length - 3)

    objects: dict[str, Path] = {}
    run_rig(tmp_path, fill, drain=True)
    ((key, path),) = objects.items()
    database = tmp_path / "metadata.sqlite"
    with due_runs(database) as due:
        assert [one.run.partition_key for one in due(key)] == keys
        with pytest.raises(CorruptDataError, match="CRC-32C differs"):
            check_object(key, [path.read_bytes()], due(key), "back up")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE partitions SET log_start = 1 WHERE partition_key = ?", keys[1:])
    with due_runs(database) as due:
        assert [one.run.partition_key for one in due(key)] == keys[:1]
        check_object(key, [path.read_bytes()], due(key), "back up")
