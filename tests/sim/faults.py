"""What goes wrong in a run, when, and to whom: drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.state.cluster_tables import group_shard
from penstock.state.schema import FEATURE_LEVEL_MAX
from sim.differing_in_life import damage_one
from sim.oracle import CLOCKS_AGREE_MS

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AGENTS_MAX = 5
RUNS_ASKED = 8
GROUPS = ("group", "simple-reads0", "simple-reads1")
"""Of members, and of consumers that assign partitions to themselves."""


def are_ahead_together(agent_ms: int, journal_ms: int) -> bool:
    """Whether an agent's clock and the journal's are wrong by the same amount. Then nothing can
    tell, and what goes by age is gone once they are believed (docs/operations.md, "Clocks")."""
    return agent_ms > 0 and abs(agent_ms - journal_ms) <= 2 * CLOCKS_AGREE_MS


class Faults:
    """The nemesis of one run. Each run has a liking for some faults and leaves others out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance.fork()
        kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._crash,
            self._crash,
            self._power_loss,
            self._power_loss,
            self._pause,
            self._pause,
            self._journal_away,
            self._journal_crash,
            self._store_away,
            self._cut_journal,
            self._cut_store,
            self._cut_clients,
            self._cut_peers,
            self._drain,
            self._join,
            self._skew,
            self._take_over,
            self._take_over,
        ]
        liked = 1 + self.chance.below(6)
        self._kinds = self.chance.shuffled(kinds)[:liked]
        self._kinds += [getattr(self, f"_{name}") for name in world.profile.faults]
        self._named: list[tuple[int, tuple[int, int, int, int]]] = []
        """What was in WALs a moment ago, and may be still."""
        self._pending: set[asyncio.Task[None]] = set()
        self._between_s = self.chance.pick((0.4, 1.0, 3.0))
        self._between_s = min(self._between_s, world.profile.between_s_max)

    async def run(self, seconds: float) -> None:
        """Do harm for so long."""
        world, chance = self.world, self.chance
        end_s = world.loop.time() + seconds
        world.set_weather(world.store_permille)
        world.rot.reply_permille = world.profile.reply_rot_permille
        while world.loop.time() < end_s:
            await asyncio.sleep(chance.uniform(0.1, 2 * self._between_s))
            kind: Callable[[], Coroutine[Any, Any, None]] = chance.pick(self._kinds)
            task: asyncio.Task[None] = asyncio.get_running_loop().create_task(kind())
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def heal(self) -> None:
        """Take everything back."""
        for task in list(self._pending):
            task.cancel()
        await asyncio.sleep(0)
        world = self.world
        world.calm_down()
        world.journal.come_back()
        world.bucket.away = False
        if world.clocks.ahead_ms:
            world.clocks.step(0)
        world.journal_clock.skew_ms = 0
        world.rot.mend()
        for agent in world.agents:
            agent.heal()
            agent.upgrade()

    def _victim(self) -> Agent:
        return self.chance.pick(self.world.agents)

    async def _for(self, least: float, most: float) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))

    async def _crash(self) -> None:
        agent = self._victim()
        agent.crash()
        await self._for(0.05, 4)
        agent.start()

    async def _crash_without_store(self) -> None:
        """An agent dies with records that only its WAL has, and has to keep them for a while."""
        agent = self._victim()
        agent.cut_store(cut=True)
        await self._for(0.2, 1)
        agent.crash()
        await self._for(0.05, 0.5)
        agent.start()
        await self._for(1, 3)
        agent.cut_store(cut=False)

    async def _power_loss(self) -> None:
        agent = self._victim()
        agent.power_loss(self.chance)
        await self._for(0.05, 4)
        agent.start()

    async def _pause(self) -> None:
        agent = self._victim()
        agent.pause()
        await self._for(0.1, 5)
        agent.resume()

    async def _journal_away(self) -> None:
        self.world.note("journal away")
        self.world.journal.go_away()
        await self._for(0.1, 5)
        self.world.note("journal back")
        self.world.journal.come_back()

    async def _journal_crash(self) -> None:
        self.world.note("journal crash")
        self.world.journal.crash()

    async def _store_away(self) -> None:
        self.world.note("store away")
        self.world.bucket.away = True
        await self._for(0.1, 5)
        self.world.note("store back")
        self.world.bucket.away = False

    async def _cut_journal(self) -> None:
        agent = self._victim()
        agent.cut_journal(cut=True)
        await self._for(0.1, 5)
        agent.cut_journal(cut=False)

    async def _cut_store(self) -> None:
        agent = self._victim()
        agent.cut_store(cut=True)
        await self._for(0.1, 5)
        agent.cut_store(cut=False)

    async def _cut_clients(self) -> None:
        agent = self._victim()
        agent.cut_from_clients = True
        await self._for(0.1, 5)
        agent.cut_from_clients = False

    async def _cut_peers(self) -> None:
        agent = self._victim()
        agent.cut_from_peers = True
        await self._for(0.1, 5)
        agent.cut_from_peers = False

    async def _drain(self) -> None:
        agent = self._victim()
        await agent.set_draining(draining=True)
        await self._for(0.5, 4)
        await agent.set_draining(draining=False)

    async def _drain_paused(self) -> None:
        """A coordinator of groups hangs while others claim its shards, and wakes before it is
        fenced, with what clients sent it meanwhile."""
        agent = self._coordinator()
        await agent.set_draining(draining=True)
        await self._for(0.0, 0.6)
        agent.pause()
        await self._for(0.2, 1.2)
        agent.resume()
        await self._for(0.2, 1.5)
        await agent.set_draining(draining=False)

    def _coordinator(self) -> Agent:
        """One that has a consumer's or the members' group; else any."""
        shards = {group_shard(group) for group in GROUPS}
        owners = [
            agent
            for agent in self.world.agents
            if agent.broker is not None
            and any(agent.broker.view.shard_owner(shard) == agent.agent_id for shard in shards)
        ]
        return self.chance.pick(owners or self.world.agents)

    async def _join(self) -> None:
        if len(self.world.agents) < AGENTS_MAX:
            self.world.join()

    async def _take_over(self) -> None:
        """An agent hangs until it is fenced; another moves its WAL to the bucket, and it wakes."""
        owner = self._victim()
        if self.world.mode == "object" or owner.node.dead:
            return
        owner.pause()
        await self._for(2.3, 4)
        others = [agent for agent in self.world.agents if agent is not owner and agent.broker]
        if others:
            await self.chance.pick(others).take_over(owner)
        if self.chance.happens(0.5):
            owner.crash()
            owner.resume()
            owner.start()
        else:
            owner.resume()

    async def _journal_clock(self) -> None:
        """The clock of the journal's database jumps, for a moment mostly."""
        clock = self.world.journal_clock
        if clock.skew_ms or self.world.clocks.ahead_ms:
            return
        skew_ms = self.chance.pick((-30 * DAY_MS, HOUR_MS, 30 * DAY_MS, 3650 * DAY_MS))
        if any(are_ahead_together(agent.clock.skew_ms, skew_ms) for agent in self.world.agents):
            return
        clock.skew_ms = skew_ms
        self.world.note(f"the journal's clock {clock.skew_ms} ms off")
        self.world.history.count("journal's clock jumped")
        await self._for(0.05, self.chance.pick((0.6, 0.6, 4)))
        clock.skew_ms = 0

    async def _journal_slow(self) -> None:
        """Appends take longer than anybody waits for them, and come through."""
        journal = self.world.journal
        faults = journal.faults
        journal.faults = replace(faults, slow_permille=700, slow_ms=(200, 900))
        await self._for(0.2, 1)
        if journal.faults.slow_permille == 700:
            journal.faults = faults

    async def _lag(self) -> None:
        """An agent hears nothing of the journal for as long as it may serve what is stored."""
        agent = self._victim()
        agent.cut_journal(cut=True)
        await self._for(0.3, 0.9)
        agent.cut_journal(cut=False)

    async def _read_behind(self) -> None:
        """An agent that is behind asks owners for what was in their WALs a moment ago: the files
        may have been used again since."""
        self.world.oracle.catch_up()
        self._named += self.world.oracle.wal_places()[-RUNS_ASKED:]
        del self._named[: -4 * RUNS_ASKED]
        for owner, name in self._named:
            agent = self.world.agent_by_id(owner)
            if agent is not None and not agent.node.dead:
                self.world.loop.spawn(agent.node, agent.answer_from_wal(*name), name="behind")

    async def _rot_object(self) -> None:
        damage = self.world.rot.damage_object(self.chance)
        await self._for(0.2, 3)
        if damage is not None:
            self.world.rot.mend_object(damage)

    async def _swap_objects(self) -> None:
        damage = self.world.rot.swap_object(self.chance)
        await self._for(0.2, 3)
        if damage is not None:
            self.world.rot.mend_object(damage)

    async def _replace_object(self) -> None:
        damage = self.world.rot.replace_object(self.chance)
        await self._for(0.2, 3)
        if damage is not None:
            self.world.rot.mend_object(damage)

    async def _rot_wal(self) -> None:
        damage = self.world.rot.damage_wal(self._victim(), self.chance)
        await self._for(0.2, 3)
        if damage is not None:
            self.world.rot.mend_wal(damage)

    async def _rot_replies(self) -> None:
        self.world.rot.reply_permille = 300
        await self._for(0.2, 3)
        self.world.rot.reply_permille = 0

    async def _damage_replica(self) -> None:
        await damage_one(self.world, self.chance)

    async def _stray(self) -> None:
        """An agent is started with the settings of another cluster, and then with its own."""
        agent = self._victim()
        if agent.is_astray:
            return
        agent.stray()
        await self._for(0.3, 2)
        agent.come_home()

    async def _upgrade(self) -> None:
        """An agent is replaced by one of the next release."""
        older = [agent for agent in self.world.agents if agent.level_max < FEATURE_LEVEL_MAX]
        if older:
            self.chance.pick(older).upgrade()

    async def _all_clocks(self) -> None:
        """All clocks step ahead together, for a moment or for so long that they are believed."""
        clocks = self.world.clocks
        if self._is_a_clock_wrong() or self.world.journal_clock.skew_ms:
            return
        clocks.step((2 + self.chance.below(18)) * HOUR_MS)
        await self._for(*self.chance.pick(((0.2, 1.8), (0.2, 1.8), (3, 6))))
        clocks.step(0)

    async def _near_skew(self) -> None:
        """The agents' wall clocks, not the journal's, are off by less than what keeps an agent from
        writing: each by another amount, most of them ahead."""
        if self._is_a_clock_wrong():
            return
        agents = list(self.world.agents)
        for agent in agents:
            skew_ms = 3_000 + self.chance.below(1_800)
            agent.clock.skew_ms = skew_ms if self.chance.happens(0.8) else -skew_ms
            self.world.note(f"{agent} clock {agent.clock.skew_ms} ms off")
        self.world.history.count("clocks a little off")
        await self._for(2, 8)
        for agent in agents:
            agent.clock.skew_ms = 0

    def _is_a_clock_wrong(self) -> bool:
        return any(agent.clock.skew_ms for agent in self.world.agents)

    async def _skew(self) -> None:
        """One agent's wall clock is off, up to an hour either way, or 30 days ahead."""
        if self._is_a_clock_wrong():
            return
        agent = self._victim()
        skew_ms = self.chance.below(2 * HOUR_MS) - HOUR_MS
        if self.world.profile.clock_days and self.chance.happens(0.7):
            skew_ms = self.world.profile.clock_days * DAY_MS
        if are_ahead_together(skew_ms, self.world.journal_clock.skew_ms):
            return
        agent.clock.skew_ms = skew_ms
        self.world.note(f"{agent} clock {agent.clock.skew_ms} ms off")
        await self._for(0.5, 8)
        agent.clock.skew_ms = 0
