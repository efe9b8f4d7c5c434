"""Dialogues in tests/golden/groups: what the machine says to every event, word for word.

`REWRITE_GOLDEN=1 pytest tests/unit/groups/test_dialogues.py` writes the answers anew; read the
difference before it is committed. (An environment variable, since pytest takes options of its own
from the root's conftest alone.)
"""

import os
from pathlib import Path

import pytest
from groups_dialogue import Dialogue

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "groups"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_machine_answers_as_written(path: Path) -> None:
    written = path.read_text()
    said = Dialogue().play(written)
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(said)
    assert said == written


def test_there_are_dialogues() -> None:
    assert len(FILES) >= 8
