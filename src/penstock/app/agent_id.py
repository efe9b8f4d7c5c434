"""An agent of a cluster takes its id from its setting, else from a file next to its replica."""

import os
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.ports.random import Random
from penstock.system.files import make_folder

FILE: Final = "agent-id"
_IDS: Final = (1 << 31) - 1


def agent_id(folder: Path, *, wanted: int, random: Random) -> int:
    """Return the agent id of a data directory, which keeps the id from its first start on.

    Args:
        wanted: the setting `node_id`; 0: any.

    Raises:
        CorruptDataError: the file holds no id.
    """
    file = folder / FILE
    known = _read(file)
    chosen = wanted or known or 1 + random.below(_IDS)
    if chosen != known:
        make_folder(folder)
        making = file.with_suffix(".new")
        making.write_text(f"{chosen}\n", encoding="ascii")
        os.replace(making, file)  # noqa: PTH105 - atomic on every system by this name
    return chosen


def _read(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return 0
    if not text.isdigit() or not 0 < int(text) <= _IDS:
        raise CorruptDataError(
            "read agent id",
            str(file),
            f"{text[:20]!r} is not an agent id",
            "remove the file: the next start chooses a new id",
        )
    return int(text)
