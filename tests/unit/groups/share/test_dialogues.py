"""Dialogues in tests/golden/shares: what the machine says to every event, word for word.

`pytest tests/unit/groups --rewrite` writes the answers anew; read the difference before it is
committed.
"""

from pathlib import Path

import pytest

from unit.groups.share.dialogue import Dialogue

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "shares"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_machine_answers_as_written(path: Path, pytestconfig: pytest.Config) -> None:
    written = path.read_text()
    said = Dialogue().play(written)
    # Not known when pytest is started for the whole tree.
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(said)
    assert said == written


def test_there_are_dialogues() -> None:
    assert len(FILES) >= 4
