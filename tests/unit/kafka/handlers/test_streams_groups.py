"""Dialogues in tests/golden/streams: what members of streams groups, and tools, are answered.

Their answers were given by Kafka 4.3.1 (`tests/peers/test_streams_groups.py` asks it again).
`pytest tests/unit/kafka/handlers/test_streams_groups.py --rewrite` writes ours again; read the
difference before it is committed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.groups.settings import GroupSettings
from penstock.security.acl import Operation, ResourceType
from penstock.state.commands import SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.acls import ALICE, acl, allow, authorize
from support.api_client import ApiClient
from support.group_dialogue import expected, merged
from support.log_rig import Rig
from support.permission_cases import CASES, Asking
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


@pytest.mark.usefixtures("virtual_loop")
async def test_a_group_that_becomes_classic_leaves_no_topology_in_the_journal(
    tmp_path: Path,
) -> None:
    world = fakes.world(tmp_path, GroupSettings(initial_rebalance_delay_ms=0))
    await world.committer.commit([SetFeatureLevel(level=FEATURE_LEVEL_MAX)])
    dialogue = StreamsDialogue(Face(world), "g")
    try:
        await dialogue.play(
            "> topic in 1\n> topology t 0 0:reads=in\n> beat a 0 joins as=t\n> beat a -1\n"
        )
        assert [member_id for member_id, _ in world.queries.group_members("g")] == [""]
        assert await dialogue.play("> join\n") == "> join\n  none generation 4\n"
        assert world.queries.group_members("g") == []
    finally:
        await world.close()


async def test_a_member_that_may_create_no_topic_is_told_so(rig: Rig) -> None:
    await rig.topic("t")
    broker = rig.agent.broker
    authorize(broker)
    client = ApiClient(broker)
    client.connection.principal = ALICE
    case = CASES["streams_group_heartbeat"]
    topic = broker.view.topic("t")
    assert topic is not None
    fields = case.fields(Asking(client, "t", topic.topic_id))
    changelog = client.part(
        "streams_group_heartbeat",
        0,
        "TopicInfo",
        name="store",
        partitions=0,
        replication_factor=0,
        topic_configs=(),
    )
    (subtopology,) = fields["topology"].subtopologies
    kept = dataclasses.replace(subtopology, state_changelog_topics=(changelog,))
    fields["topology"] = dataclasses.replace(fields["topology"], subtopologies=(kept,))
    fields["group_id"] = "g"
    await allow(broker, *case.needs, acl(Operation.DESCRIBE, ResourceType.TOPIC, "store"))
    reply = await client.call("streams_group_heartbeat", 0, **fields)
    assert [one.status_code for one in reply.status or ()][-1:] == [3], reply
    assert "Unauthorized to CREATE on topics store." in reply.status[-1].status_detail
    assert broker.view.topic("store") is None
    await allow(broker, acl(Operation.CREATE, ResourceType.TOPIC, "store"))
    await client.call("streams_group_heartbeat", 0, **fields)
    assert broker.view.topic("store") is not None
