"""Kafka 4.3.1 gives the answers that tests/golden/migration says are its own.

`pytest tests/peers/test_group_migration.py --rewrite` writes Kafka's again; read the difference
before it is committed.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from peers.apache_kafka import running_kafka
from penstock.groups.settings import MigrationPolicy
from support.group_dialogue import (
    PARTITIONS,
    TOPIC,
    GroupDialogue,
    expected,
    merged,
    policy_of,
)
from support.wire_face import WireFace

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "migration"
READY_TRIES_MAX = 1200
"""How often it is looked whether groups and the topic are served, every tenth of a second."""


@pytest.mark.parametrize("policy", list(MigrationPolicy))
async def test_kafka_answers_members_of_both_protocols_as_written(
    policy: MigrationPolicy, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    dialogues = {
        path: written
        for path in sorted(GOLDEN.glob("*.txt"))
        if policy_of(written := path.read_text()) == policy
    }
    assert dialogues
    with running_kafka(
        tmp_path,
        group_consumer_migration_policy=policy,
        group_consumer_assignment_interval_ms="0",
        group_initial_rebalance_delay_ms="0",
    ) as port:
        face = WireFace("127.0.0.1", port)
        topic_id = await _ready(face)
        for path, written in dialogues.items():
            said = await GroupDialogue(face, path.stem, topic_id).play(expected(written, "kafka"))
            if pytestconfig.getoption("--rewrite", default=False):
                path.write_text(merged(said, expected(written, "ours")))
            assert said == expected(written, "kafka")


async def _ready(face: WireFace) -> uuid.UUID:
    """Make the topic, and wait until groups are served. Returns: the topic's id."""
    wanted = face.part(
        "create_topics",
        7,
        "CreatableTopic",
        name=TOPIC,
        num_partitions=PARTITIONS,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    made = await face.call(
        "create_topics",
        7,
        topics=(wanted,),
        timeout=timedelta(minutes=1),
        validate_only=False,
    )
    topic_id: uuid.UUID = made.topics[0].topic_id
    for _ in range(READY_TRIES_MAX):
        found = await face.call("find_coordinator", 3, key="g", key_type=0)
        lives = await face.call(
            "heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None
        )
        named = face.part("metadata", 12, "MetadataRequestTopic", topic_id=None, name=TOPIC)
        shown = await face.call(
            "metadata",
            12,
            topics=(named,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        errors = [shown.topics[0], *shown.topics[0].partitions, found]
        is_ready = not any(one.error_code.value for one in errors)
        if is_ready and lives.error_code.name == "unknown_member_id":
            return topic_id
        await asyncio.sleep(0.1)
    raise AssertionError("Kafka serves no groups yet")
