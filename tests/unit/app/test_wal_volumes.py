"""Which WALs are taken over from volumes, and by whom first."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.app.wal_volumes import TURN_S, WalVolumes, orphans
from penstock.log.wals.names import new_wal_name
from penstock.model.errors import ConflictError, RetryableError
from penstock.placement.rendezvous import ranked
from penstock.state.rows import Agent, AgentStatus, Wal
from penstock.system.files import PosixDevice
from support.simulated.clock import ManualClock
from support.simulated.randomness import SeededRandom

ME, LIVE, DRAINING, FENCED, GONE = 1, 2, 3, 4, 5


def agent(agent_id: int, status: AgentStatus) -> Agent:
    return Agent(
        agent_id=agent_id,
        epoch=7,
        status=status,
        labels={},
        software="",
        endpoint="",
        peer="",
        level_max=2,
    )


AGENTS = {
    ME: agent(ME, AgentStatus.LIVE),
    LIVE: agent(LIVE, AgentStatus.LIVE),
    DRAINING: agent(DRAINING, AgentStatus.DRAINING),
    FENCED: agent(FENCED, AgentStatus.FENCED),
}


def test_only_what_nobody_living_empties_is_an_orphan() -> None:
    wals = [Wal(owner, bytes([owner]) * 16, owner, 6, 0) for owner in (*AGENTS, GONE)]
    assert [wal.agent for wal in orphans(wals, AGENTS, me=ME)] == [ME, FENCED, GONE]


class State:
    """Stands for queries and view: WALs with and without records, and agents."""

    def __init__(self) -> None:
        self.all: list[Wal] = []
        self.named: set[int] = set()

    def wals(self) -> list[Wal]:
        return self.all

    def wal_generations(self, wal_key: int) -> set[int]:
        return {wal_key << 32 | 1} if wal_key in self.named else set()

    def agents(self) -> list[Agent]:
        return list(AGENTS.values())


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: Any = State()
        self.clock = ManualClock()
        self.taken: list[str] = []
        self.outcome: Exception | None = None

    def directory(self, name: str, owner: int, *, named: bool = True) -> bytes:
        """A data directory with a WAL."""
        root = self.folder / name
        wal_id = new_wal_name(PosixDevice(root), "some-cluster", SeededRandom(hash(name)))
        key = len(self.state.all) + 1
        self.state.all.append(Wal(key, wal_id, owner, 6, 1))
        if named:
            self.state.named.add(key)
        return wal_id

    async def take_over(self, directory: str) -> int:
        self.taken.append(Path(directory).name)
        if self.outcome is not None:
            raise self.outcome
        return 10

    def rounds(self, me: int, *pauses_s: float) -> list[list[str]]:
        """What was taken in each of several rounds, with pauses before them."""

        async def main() -> list[list[str]]:
            with ThreadPoolExecutor(1) as pool:
                volumes = WalVolumes(
                    pattern=str(self.folder / "*"),
                    own=self.folder / "own",
                    me=me,
                    view=self.state,
                    queries=lambda: self.state,
                    clock=self.clock,
                    pool=pool,
                    take_over=self.take_over,
                )
                taken = []
                for pause_s in pauses_s:
                    self.clock.advance(pause_s)
                    await volumes.run_once()
                    taken.append(self.taken)
                    self.taken = []
                return taken

        return asyncio.run(main())


def test_wals_of_the_dead_are_found_by_their_ids_and_the_own_directory_is_not_one(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    rig.directory("own", ME)
    rig.directory("living", LIVE)
    rig.directory("empty", FENCED, named=False)
    rig.directory("dead", GONE)
    (tmp_path / "no-wal").mkdir()
    assert rig.rounds(ME, 0, 3 * TURN_S)[-1] == ["dead"]


def test_each_agents_turn_comes_when_those_before_it_have_had_theirs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    wal_id = rig.directory("dead", FENCED)
    first, second, third = ranked(wal_id, [ME, LIVE, DRAINING])
    assert rig.rounds(first, 0) == [["dead"]]
    assert rig.rounds(second, 0, TURN_S - 1, 1) == [[], [], ["dead"]]
    assert rig.rounds(third, 0, 2 * TURN_S - 1, 1) == [[], [], ["dead"]]


@pytest.mark.parametrize("error", [ConflictError, RetryableError])
def test_what_one_directory_fails_with_keeps_no_other_from_being_taken(
    tmp_path: Path, error: type[Exception]
) -> None:
    rig = Rig(tmp_path)
    rig.directory("a", FENCED)
    rig.directory("b", FENCED)
    rig.outcome = error("take over", "WAL", "no")
    assert sorted(rig.rounds(ME, 0, 3 * TURN_S)[-1]) == ["a", "b"]
