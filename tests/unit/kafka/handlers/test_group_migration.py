"""Dialogues in tests/golden/migration: what members of both protocols in one group are answered.

Their answers were given by Kafka 4.3.1 (`tests/peers/test_group_migration.py` asks it again).
`pytest tests/unit/kafka/handlers/test_group_migration.py --rewrite` writes ours again; read the
difference before it is committed.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from penstock.groups.settings import GroupSettings, MigrationPolicy
from penstock.state.commands import SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.group_dialogue import (
    PARTITIONS,
    TOPIC,
    GroupDialogue,
    expected,
    merged,
    policy_of,
)
from unit.groups import fakes
from unit.kafka.handlers.conftest import Face

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "migration"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.usefixtures("virtual_loop")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_members_of_both_protocols_are_answered_as_written(
    path: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    written = path.read_text()
    settings = GroupSettings(
        initial_rebalance_delay_ms=0, migration_policy=MigrationPolicy(policy_of(written))
    )
    world = fakes.world(tmp_path, settings)
    topic = world.topic(TOPIC, PARTITIONS)
    await world.committer.commit([SetFeatureLevel(level=FEATURE_LEVEL_MAX)])
    dialogue = GroupDialogue(Face(world), path.stem, uuid.UUID(bytes=topic.topic_id))
    try:
        said = await dialogue.play(expected(written, "ours"))
    finally:
        await world.close()
    # Not known when pytest is started for the whole tree.
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(merged(expected(written, "kafka"), said))
    assert said == expected(written, "ours")


def test_there_are_dialogues_under_each_policy() -> None:
    assert {policy_of(path.read_text()) for path in FILES} == {*MigrationPolicy}
