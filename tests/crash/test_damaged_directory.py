"""Whatever is damaged in a data directory, `verify` ends with findings and a start serves right
data or names a file; neither ends with a traceback.

    PENSTOCK_DAMAGE_CASES=320   how many cases
    PENSTOCK_DAMAGE_SEED=1      the first one's seed
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random as Chance

import pytest
from click.testing import CliRunner

from penstock.cli.commands.verify import command
from penstock.log.layout import DataLayout
from penstock.model.errors import PenstockError
from penstock.model.ids import partition_key
from penstock.recovery.directory import verify_directory
from support.log_rig import Rig, run_rig
from unit.log.opening.test_rebuild import settle

CASES = int(os.environ.get("PENSTOCK_DAMAGE_CASES", "320"))
SEED = int(os.environ.get("PENSTOCK_DAMAGE_SEED", "1"))
VALUES = [b"value %d " % number + b"x" * 50 for number in range(24)]


async def fill(rig: Rig) -> None:
    """Segments, snapshots, journal files, a WAL with a tail, producers and topics."""
    keys = await rig.topic("t", partitions=2)
    for number, value in enumerate(VALUES):
        for key in keys:
            await rig.append(key, value, producer=(7, 0, number))
        if number in (6, 12):
            await rig.drain()
            await rig.upkeep.snapshot()


async def read(rig: Rig) -> None:
    """Raises an error of ours where what is stored can't be had."""
    topic = rig.view.topic("t")
    assert topic is not None
    for number in range(2):
        key = partition_key(topic.topic_key, number)
        found = await rig.read_all(key)
        assert found == list(enumerate(VALUES)), "wrong or missing records"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("whole") / "data"
    run_rig(data, fill)
    (data / "lock").unlink(missing_ok=True)
    return data


def used(data: bytes) -> int:
    """Where a file's bytes that aren't zeros end."""
    return len(data.rstrip(b"\0"))


def damage(data: Path, chance: Chance) -> str:
    """Flip, cut, overwrite, swap or delete something. Returns what."""
    files = sorted(path for path in data.rglob("*") if path.is_file())
    path = chance.choice(files)
    name = str(path.relative_to(data))
    content = bytearray(path.read_bytes())
    end = max(1, used(content))
    kind = chance.choice(["flip", "flip", "flips", "cut", "noise", "zeros", "delete", "swap"])
    if kind == "delete":
        path.unlink()
    elif kind == "swap":
        other = chance.choice([one for one in files if one.parent == path.parent])
        other_content = other.read_bytes()
        other.write_bytes(content)
        path.write_bytes(other_content)
        name += f" and {other.name}"
    elif not content:
        path.write_bytes(chance.randbytes(100))
    elif kind in {"flip", "flips"}:
        for _ in range(1 if kind == "flip" else 20):
            content[chance.randrange(end)] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    elif kind == "cut":
        path.write_bytes(content[: chance.randrange(end)])
    else:
        at, length = chance.randrange(end), chance.randrange(1, 5000)
        new = chance.randbytes(length) if kind == "noise" else bytes(length)
        content[at : at + length] = new
        path.write_bytes(content)
    return f"{kind} in {name}"


def verified(data: Path) -> bool:
    """Whether `verify` finds nothing; only our own errors pass."""
    try:
        return asyncio.run(verify_directory(DataLayout(data))).ok
    except PenstockError:
        return False


def test_only_findings_and_errors_of_ours_come_out(whole: Path, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEED, SEED + CASES):
        data = tmp_path / "data"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(whole, data)
        what = damage(data, Chance(seed))
        try:
            is_ok = verified(data)
            try:
                run_rig(data, read)
            except PenstockError as error:
                # Named: a file, or a folder's part of it.
                assert error.subject, error
                outcomes["refused"] += 1
                assert not is_ok, f"verify finds nothing, and the start says {error}"
            else:
                outcomes["right, and found" if not is_ok else "right, nothing found"] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}: {what}")
            raise
    print(dict(outcomes))
    assert all(outcomes[name] > CASES // 30 for name in ("refused", "right, and found"))


def test_verify_bears_any_damage_without_a_journal_beside_the_database(
    whole: Path, tmp_path: Path
) -> None:
    """As in a directory of a release before: no other copy tells which values are right."""
    outcomes: Counter[bool] = Counter()
    path = tmp_path / "data" / "metadata.sqlite"
    for seed in range(SEED, SEED + CASES // 2):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "data")
        shutil.rmtree(tmp_path / "data" / "journal")
        settle(path)
        chance = Chance(seed)
        content = bytearray(path.read_bytes())
        for _ in range(1 + seed % 20):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            outcomes[verified(tmp_path / "data")] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert outcomes[False] > CASES // 10


def test_the_command_says_damaged_by_its_exit_status(whole: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    assert runner.invoke(command, ["--data", str(data)]).exit_code == 0
    for seed in range(30):
        shutil.rmtree(data)
        shutil.copytree(whole, data)
        what = damage(data, Chance(seed))
        expected = {True: {0}, False: {1, 2}}[verified(data)]
        result = runner.invoke(command, ["--data", str(data)])
        assert result.exit_code in expected, (what, result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), what


def test_a_lost_database_is_damage_that_a_start_mends(whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    (data / "metadata.sqlite").unlink()
    result = CliRunner().invoke(command, ["--data", str(data)])
    assert result.exit_code == 1
    assert "it is missing; the next start makes it again" in result.output
    run_rig(data, read)
    assert CliRunner().invoke(command, ["--data", str(data)]).exit_code == 0
