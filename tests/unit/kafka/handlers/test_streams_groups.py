"""Dialogues in tests/golden/streams: what members of streams groups, and tools, are answered.

Their answers were given by Kafka 4.3.1 (`tests/peers/test_streams_groups.py` asks it again).
`pytest tests/unit/kafka/handlers/test_streams_groups.py --rewrite` writes ours again; read the
difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.groups.settings import GroupSettings
from penstock.state.commands import SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.group_dialogue import expected, merged
from support.streams_dialogue import StreamsDialogue
from unit.groups import fakes
from unit.kafka.handlers.conftest import Face

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "streams"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.usefixtures("virtual_loop")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_members_of_streams_groups_are_answered_as_written(
    path: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    written = path.read_text()
    world = fakes.world(tmp_path, GroupSettings(initial_rebalance_delay_ms=0))
    await world.committer.commit([SetFeatureLevel(level=FEATURE_LEVEL_MAX)])
    try:
        said = await StreamsDialogue(Face(world), path.stem).play(expected(written, "ours"))
    finally:
        await world.close()
    # Not known when pytest is started for the whole tree.
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(merged(expected(written, "kafka"), said))
    assert said == expected(written, "ours")
