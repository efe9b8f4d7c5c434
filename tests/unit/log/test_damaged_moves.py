"""What is damaged is neither copied nor deleted: moves name it and go on with the rest."""

import pytest

from penstock.log.findings import DamagedError, DamageKind
from support.log_rig import Rig
from support.rot import consume, flip, object_path, read_views, runs_of, wal_path


async def test_a_damaged_run_stays_in_the_wal_and_the_others_are_moved(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, is an error of its readers, and its file is kept."""
    keys = await rig.topic("t", 3)
    for number in range(4):
        for key in keys:
            await rig.append(key, b"%d" % number * 100)
    await rig.log.let_queries_find()
    rig.forget_memory()
    bad = runs_of(rig, keys[1])[2]
    path = wal_path(rig, bad)
    flip(path, bad.position + 80)
    assert not await rig.log.uploader.drain(10)
    assert rig.log.uploader.damaged_bytes == rig.log.uploader.pending_bytes == bad.length
    assert "1 damaged runs" in rig.log.uploader.last_error
    expected = [(number, b"%d" % number * 100) for number in range(4)]
    assert not [run for run in runs_of(rig, keys[0]) if run.generation]
    assert [run for run in runs_of(rig, keys[1]) if run.generation] == [bad]
    (damage,) = rig.log.damages.known()
    assert (damage.kind, damage.start, damage.end) == (DamageKind.DAMAGED_WAL, 2, 3)
    assert caplog.text.count("upload t-1 offsets 2 to 2") == 1
    assert await consume(rig, keys[0], read_views) == (expected, None)
    found, error = await consume(rig, keys[1], read_views)
    assert found == expected[:2]
    assert isinstance(error, DamagedError)
    # What comes later is moved, and nothing frees the file.
    await rig.append(keys[0], b"later")
    rig.forget_memory()
    assert not await rig.log.uploader.drain(10)
    assert (await consume(rig, keys[0], read_views))[0][-1] == (4, b"later")
    assert path.exists()
    assert [run for run in runs_of(rig, keys[1]) if run.generation] == [bad]
    # Right again: it is moved when it is looked at again.
    flip(path, bad.position + 80)
    rig.clock.advance(61)
    assert await rig.log.uploader.drain(10)
    assert not [run for run in runs_of(rig, keys[1]) if run.generation]
    assert await consume(rig, keys[1], read_views) == (expected, None)
    assert not rig.log.uploader.damaged_bytes


async def test_what_is_in_memory_still_is_moved_from_there(rig: Rig) -> None:
    """Its bytes were checked when they came: the WAL that rots under them costs nothing."""
    (key,) = await rig.topic("t")
    await rig.append(key, b"a" * 100)
    await rig.log.let_queries_find()
    (run,) = runs_of(rig, key)
    flip(wal_path(rig, run), run.position + 80)
    await rig.drain()
    rig.forget_memory()
    assert await consume(rig, key, read_views) == ([(0, b"a" * 100)], None)


async def test_a_damaged_run_that_is_trimmed_is_forgotten(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"a" * 100)
    await rig.append(key, b"b" * 100)
    await rig.log.let_queries_find()
    rig.forget_memory()
    run = runs_of(rig, key)[0]
    flip(wal_path(rig, run), run.position + 80)
    assert not await rig.log.uploader.drain(10)
    assert await rig.log.delete_records([(key, 1)]) == [1]
    assert not rig.log.damages.known()
    rig.clock.advance(61)
    assert await rig.log.uploader.drain(10)
    assert not rig.log.uploader.damaged_bytes
    assert object_path(rig, runs_of(rig, key)[0]).exists()
