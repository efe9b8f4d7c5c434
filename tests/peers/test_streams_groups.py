"""Kafka 4.3.1 gives the answers that tests/golden/streams says are its own.

`pytest tests/peers/test_streams_groups.py --rewrite` writes Kafka's again; read the difference
before it is committed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peers.apache_kafka import running_kafka
from support.group_dialogue import expected, merged
from support.streams_dialogue import StreamsDialogue
from support.wire_face import WireFace

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "streams"
READY_TRIES_MAX = 1200
"""How often it is looked whether groups are served, every tenth of a second."""
SETTLE_S = 0.5
"""How long after a change Kafka's coordinator has seen it."""


async def test_kafka_answers_members_of_streams_groups_as_written(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    with running_kafka(tmp_path, group_initial_rebalance_delay_ms="0") as port:
        face = WireFace("127.0.0.1", port)
        await _ready(face)
        for path in sorted(GOLDEN.glob("*.txt")):
            written = path.read_text()
            dialogue = StreamsDialogue(face, path.stem, lambda: asyncio.sleep(SETTLE_S))
            said = await dialogue.play(expected(written, "kafka"))
            if pytestconfig.getoption("--rewrite", default=False):
                path.write_text(merged(said, expected(written, "ours")))
            assert said == expected(written, "kafka"), path


async def _ready(face: WireFace) -> None:
    for _ in range(READY_TRIES_MAX):
        await face.call("find_coordinator", 3, key="g", key_type=0)
        lives = await face.call(
            "heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None
        )
        if lives.error_code.name == "unknown_member_id":
            return
        await asyncio.sleep(0.1)
    raise AssertionError("Kafka serves no groups yet")
