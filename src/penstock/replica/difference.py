"""The note that a replica differs from the others', and what the next start does about it.

It lies next to the replica, since the replica itself is wrong. The agent writes it and ends;
the next start sets the replica aside and makes another; once that is found equal the note is
removed. A second difference can't be a flipped bit, and the agent does not start again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.replica.bootstrap import DATABASE_SUFFIXES
from penstock.replica.database import sync_directory

DIFFERENCES_MAX: Final = 2
"""After so many the agent refuses to start."""
_SUFFIX: Final = ".differs"
_ASIDE: Final = ".aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`count`: how often in a row. `is_aside`: the replica was set aside since."""

    count: int
    position: int
    tables: list[str]
    is_aside: bool = False


def note_of(path: Path) -> Path:
    """The note of the replica at `path`."""
    return path.with_name(path.name + _SUFFIX)


def aside_of(path: Path) -> Path:
    """Return where the replica at `path` is set aside."""
    return path.with_name(path.name + _ASIDE)


def read_difference(path: Path) -> Difference | None:
    """The note of the replica at `path`, if there is one.

    Raises:
        CorruptDataError: it is not what was written.
    """
    note = note_of(path)
    try:
        return Difference(**json.loads(note.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise CorruptDataError(
            "read note", str(note), str(error), "remove it, and the replica next to it"
        ) from error


def write_difference(path: Path, found: Difference) -> None:
    """Write the note of the replica at `path`, durably."""
    note = note_of(path)
    partial = note.with_name(note.name + ".partial")
    values = {name: getattr(found, name) for name in ("count", "position", "tables", "is_aside")}
    with partial.open("w") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(note)
    sync_directory(note.parent)


def forget_difference(path: Path) -> None:
    """Remove the note: the replica is equal to the others'. What was set aside stays."""
    note_of(path).unlink(missing_ok=True)


def set_aside_if_different(path: Path) -> bool:
    """Do what a start does before it opens the replica at `path`.

    Returns:
        Whether the replica was set aside.
    Raises:
        CorruptDataError: it differed before, too.
    """
    found = read_difference(path)
    if found is None:
        return False
    if found.count >= DIFFERENCES_MAX:
        raise CorruptDataError(
            "open replica",
            str(path),
            f"this agent's state differed {found.count} times in a row from that of the other"
            f" agents, at position {found.position} in {', '.join(found.tables)}",
            "look for damaged memory or another build of Python or SQLite on this host; then remove"
            f" {note_of(path)}, and the agent compares its state again",
        )
    if found.is_aside:
        return False
    # The database's own file goes last: until then this is done again from the start.
    for suffix in reversed(DATABASE_SUFFIXES):
        source = path.with_name(path.name + suffix)
        target = aside_of(path)
        target = target.with_name(target.name + suffix)
        if source.exists():
            source.replace(target)
        else:
            target.unlink(missing_ok=True)
    write_difference(
        path,
        Difference(count=found.count, position=found.position, tables=found.tables, is_aside=True),
    )
    return True
