"""An instance's number, and its copies of what a journal holds: they may have to be set aside."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.ports.random import Random
from penstock.replica.database import connect_reader, state_position
from penstock.system.files import make_folder

INSTANCE_FILE: Final = "instance"
ASIDE_KEPT: Final = 3
_LOST: Final = "lost"
"""A file: what was applied up to this journal time is lost, and a history is to be begun."""
_NUMBERS: Final = (1 << 31) - 1


def instance_number(folder: Path, random: Random) -> int:
    """Read an instance's number, which the first start draws.

    Raises:
        CorruptDataError: the file has none.
    """
    file = folder / INSTANCE_FILE
    if not file.exists():
        make_folder(folder)
        number = 1 + random.below(_NUMBERS)
        new = file.with_suffix(".new")
        new.write_text(f"{number}\n", "ascii")
        new.replace(file)
        return number
    text = file.read_text("ascii", "replace").strip()
    if not text.isdecimal() or not 0 < int(text) <= _NUMBERS:
        raise CorruptDataError(
            "read",
            str(file),
            f"{text[:20]!r} isn't an instance's number",
            "remove the file: the next start draws another",
        )
    return int(text)


def set_aside(folder: Path, names: Sequence[str]) -> Path:
    """Move copies to a folder of their own; the last three such folders are kept."""
    kept = sorted(
        (path for path in folder.glob("lost-*") if path.name[5:].isdecimal()),
        key=lambda path: int(path.name[5:]),
    )
    number = int(kept[-1].name[5:]) + 1 if kept else 1
    target = folder / f"lost-{number}"
    make_folder(target)
    for name in names:
        if (folder / name).exists():
            (folder / name).rename(target / name)
    for path in kept[: max(0, len(kept) + 1 - ASIDE_KEPT)]:
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    return target


def note_lost(folder: Path, time_ms: int) -> None:
    """Have this start begin a history, or the next one, if this one ends before.

    Args:
        time_ms: journal time up to which entries were applied here that the journal has lost.
    """
    known = lost_ms(folder)
    (folder / _LOST).write_text(str(max(time_ms, known or 0)), "ascii")


def lost_ms(folder: Path) -> int | None:
    """Give what `note_lost` has noted; None: nothing."""
    path = folder / _LOST
    if not path.exists():
        return None
    text = path.read_text("ascii", "replace")
    return int(text) if text.isdecimal() else 0


def forget_lost(folder: Path) -> None:
    """A history has begun."""
    (folder / _LOST).unlink(missing_ok=True)


def time_of(database: Path) -> int:
    """Give the journal time of a database."""
    with closing(connect_reader(database)) as connection:
        return state_position(connection)[1]
