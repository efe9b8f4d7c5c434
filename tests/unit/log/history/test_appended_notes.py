"""What was appended again is known by notes, read in the order of the lost batches."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.history.appended_notes import AppendedNotes
from penstock.log.history.lost_records import LostBatch
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from support.cluster_rig import Cluster, ClusterAgent, ScriptedStore, run_cluster
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualLoop, run
from unit.log.history.test_repair import STORED, lost_life, repair_of

PARTITIONS = (("a", 1), ("a-1", 0), ("a", 10))
"""Names of which one begins like another's notes."""
groups = st.lists(
    st.tuples(
        st.sampled_from(PARTITIONS),
        st.integers(0, 60),
        st.lists(st.tuples(st.integers(1, 3), st.integers(7, 8)), min_size=1, max_size=5),
    ),
    max_size=12,
)


def batch(topic: str, partition: int, offset: int, crc: int = 7) -> LostBatch:
    return LostBatch(
        partition_key=PartitionKey(1),
        common_key=None,
        topic=topic,
        partition=partition,
        offset=offset,
        end_offset=offset + 1,
        crc=crc,
        data=bytearray(),
    )


@pytest.mark.slow
@given(groups)
def test_a_batch_is_held_if_any_note_names_it(
    noted: list[tuple[tuple[str, int], int, list[tuple[int, int]]]],
) -> None:
    """Groups of several agents overlap, and one partition is read once per state."""

    async def main(loop: VirtualLoop) -> None:
        notes = AppendedNotes(ScriptedStore(loop), 1)
        names = set()
        for (topic, partition), offset, steps in noted:
            group = []
            for step, crc in steps:
                group.append(batch(topic, partition, offset, crc))
                names.add((topic, partition, offset, crc))
                offset += step
            await notes.add(group)
            await notes.add(group)  # by another agent at once
        for topic, partition in (*PARTITIONS, PARTITIONS[-1], PARTITIONS[0]):
            for offset in range(80):
                for crc in (7, 8):
                    held = await notes.holds(batch(topic, partition, offset, crc))
                    assert held == ((topic, partition, offset, crc) in names)
        await AppendedNotes(ScriptedStore(loop), 2).holds(batch("a", 1, 0))

    run(main, SeededRandom(1))


def test_a_damaged_note_is_an_error_that_names_it() -> None:
    """What it says is not believed: a batch would be left out, or appended twice."""

    async def main(loop: VirtualLoop) -> None:
        store = ScriptedStore(loop)
        await AppendedNotes(store, 1).add([batch("t", 0, 17)])
        ((key, (data, modified_ms)),) = store.objects.items()
        for damaged in (data.replace(b"17", b"18"), data[:-3], b"\xff" + data[1:]):
            store.objects[key] = (damaged, modified_ms)
            with pytest.raises(CorruptDataError, match=f"{key}.*CRC-32C differs.*delete it"):
                await AppendedNotes(store, 1).holds(batch("t", 0, 17))
        store.objects[key] = (data, modified_ms)
        assert await AppendedNotes(store, 1).holds(batch("t", 0, 17))

    run(main, SeededRandom(1))


def test_of_many_notes_those_are_in_memory_that_reach_over_one_offset() -> None:
    async def main(loop: VirtualLoop) -> None:
        notes = AppendedNotes(ScriptedStore(loop), 1)
        for first in range(0, 600, 4):
            await notes.add([batch("t", 0, first + number) for number in range(4)])
        for offset in range(600):
            assert await notes.holds(batch("t", 0, offset))
            assert sum(len(batches) for _, batches in notes._held) <= 4

    run(main, SeededRandom(1))


@pytest.mark.slow
def test_a_long_history_is_read_in_many_turns_of_the_loop() -> None:
    """So that clients are answered meanwhile: some batches are looked at between two turns."""

    async def test(cluster: Cluster) -> None:
        keys: list[PartitionKey] = []

        async def before(agent: ClusterAgent) -> None:
            keys.extend(await agent.topic("t"))

        async def after(agent: ClusterAgent) -> None:
            for _ in range(3):
                sent = await agent.send(*((keys[0], b"lost %d" % number) for number in range(100)))
                assert {append.status for append in sent} == {STORED}

        survivor = await lost_life(cluster, before, after)
        loop = cluster.loop
        repair = repair_of(survivor)
        turn = 0

        def turned() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(turned)

        loop.call_soon(turned)
        looked: dict[int, int] = {}
        is_duplicate = repair._is_duplicate

        def counted(found: LostBatch, common: object) -> bool:
            looked[turn] = looked.get(turn, 0) + 1
            return is_duplicate(found, common)  # type: ignore[arg-type]

        repair._is_duplicate = counted  # type: ignore[method-assign]
        (report,) = await repair.look()
        assert sum(found.records for found in report.partitions) == sum(looked.values()) == 300
        assert max(looked.values()) <= 64

    with tempfile.TemporaryDirectory() as folder:
        run_cluster(Path(folder), test)
