"""Dialogues in tests/golden/transactions: what producers of both protocols are answered.

`pytest tests/unit/kafka/handlers/test_transactions.py --rewrite` writes the answers again; read the
difference before it is committed.
"""

from pathlib import Path

import pytest

from support.log_rig import Rig
from unit.kafka.handlers.dialogue import Dialogue

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "transactions"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_producers_are_answered_as_written(
    path: Path, rig: Rig, pytestconfig: pytest.Config
) -> None:
    await rig.topic("t", 3)
    written = path.read_text()
    said = await Dialogue(rig.agent.broker).play(written)
    # Not known when pytest is started for the whole tree.
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(said)
    assert said == written


def test_there_are_dialogues() -> None:
    assert len(FILES) >= 6
