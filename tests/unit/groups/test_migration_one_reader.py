"""However members of both protocols come, go, die and are moved, no partition has two readers, and
each has one once all is quiet."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.generations import GroupState
from penstock.groups.settings import GroupSettings, MigrationPolicy
from penstock.groups.state import ClassicGroup
from penstock.groups.subscription import read_assignment
from penstock.model.errors import RetryableError
from penstock.state.commands import SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualRunner
from support.waiting import turns
from unit.groups.fakes import pass_ms, world
from unit.groups.migrating_clients import (
    GROUP,
    NOTHING,
    PARTITIONS,
    TOPIC,
    ClassicClient,
    Client,
    ConsumerClient,
    Numbers,
)

CLIENTS_MAX = 4
QUIET_ROUNDS_MAX = 60
"""How many rounds a group gets to come to rest: more than a dead member's session and the time that
the others wait for one in a rebalance."""
ROUND_MS = 3_000
SESSION_MS = 20_000


class Migration(RuleBasedStateMachine):
    """One group, its clients, a journal that stalls and refuses, coordinators that move."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = VirtualRunner(SeededRandom(1)).__enter__()
        self.clients: list[Client] = []
        self.acting: dict[Client, asyncio.Task[None]] = {}
        self.made = 0
        self.floor = 0
        """The greatest epoch that any member was answered with."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.runner.run(work)

    @initialize(
        policy=st.sampled_from([MigrationPolicy.BIDIRECTIONAL, *MigrationPolicy]),
        is_cooperative=st.booleans(),
    )
    def begins(self, policy: MigrationPolicy, *, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative

        async def begin() -> None:
            limits = GroupSettings(
                initial_rebalance_delay_ms=0,
                consumer_session_timeout_ms=SESSION_MS,
                migration_policy=policy,
            )
            self.world = world(Path(self.folder.name), limits)
            self.topic_id = self.world.topic(TOPIC, PARTITIONS).topic_id
            await self.world.committer.commit([SetFeatureLevel(level=FEATURE_LEVEL_MAX)])

        self.run(begin())

    # -- clients -----------------------------------------------------------------------------------

    def _add(self, instance_id: str | None, *, is_classic: bool) -> None:
        self.made += 1
        name = f"m{self.made}"
        client: Client = ConsumerClient(name, instance_id, self.topic_id)
        if is_classic:
            client = ClassicClient(name, instance_id, is_cooperative=self.is_cooperative)
        self.clients.append(client)

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(is_classic=st.booleans(), is_static=st.booleans())
    def comes(self, *, is_classic: bool, is_static: bool) -> None:
        instance_id = f"i{self.made}" if is_static else None
        self._add(instance_id, is_classic=is_classic)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def acts(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        assume(client not in self.acting)
        self.run(self._act([client]))

    @rule(rounds=st.integers(1, 3))
    def all_act(self, rounds: int) -> None:
        for _ in range(rounds):
            self.run(self._act(self.clients))

    async def _act(self, clients: list[Client]) -> None:
        for client in clients:
            if client not in self.acting:
                task = asyncio.ensure_future(client.act(self.world.groups))
                self.acting[client] = task
        await turns()
        for client, task in list(self.acting.items()):
            if task.done():
                del self.acting[client]
                task.result()
                self.floor = max(self.floor, client.epoch)
                if client.is_fenced:
                    self.clients.remove(client)

    def _stop(self, client: Client) -> None:
        """Its process is gone: it reads nothing, and hears of nothing."""
        self.clients.remove(client)
        task = self.acting.pop(client, None)
        if task is not None:
            task.cancel()

    @precondition(lambda self: self.clients and self.world.committer.gate is None)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self._stop(client)

        async def leave() -> None:
            await client.leave(self.world.groups)
            await turns()

        self.run(leave())

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        self._stop(data.draw(st.sampled_from(self.clients)))
        self.run(turns())

    @precondition(lambda self: any(client.instance_id for client in self.clients))
    @rule(data=st.data(), is_classic=st.booleans())
    def a_static_one_restarts(self, data: st.DataObject, *, is_classic: bool) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients if one.instance_id]))
        self._stop(client)
        self._add(client.instance_id, is_classic=is_classic)

    @precondition(lambda self: self.world.committer.gate is None)
    @rule(rounds=st.integers(1, 5))
    def time_passes(self, rounds: int) -> None:
        """All clients that live send heartbeats in it; sessions of the dead end."""
        for _ in range(rounds):
            self.run(pass_ms(ROUND_MS))
            for _ in range(3):
                self.run(self._act(self.clients))

    # -- the journal and the coordinator -----------------------------------------------------------

    @precondition(lambda self: self.world.committer.gate is None)
    @rule()
    def the_journal_stalls(self) -> None:
        async def stall() -> None:
            self.world.committer.gate = asyncio.Event()

        self.run(stall())

    @precondition(lambda self: self.world.committer.gate is not None)
    @rule(is_well=st.booleans())
    def the_journal_answers(self, *, is_well: bool) -> None:
        async def answer() -> None:
            committer = self.world.committer
            gate, committer.gate = committer.gate, None
            assert gate is not None
            if not is_well:
                committer.failure = RetryableError("append", "journal", "away")
            gate.set()
            await turns()
            committer.failure = None
            await self._act([])

        self.run(answer())

    @rule()
    def the_coordinator_is_killed(self) -> None:
        """The next one knows what is journaled; no client is answered what it waits for."""

        async def crash() -> None:
            for task in self.acting.values():
                task.cancel()
            self.acting.clear()
            old = self.world
            # What waits for the journal waits for ever.
            old.committer.gate = asyncio.Event()
            old.groups._memory.closed = True
            await turns()
            self.world = old.crash()

        self.run(crash())
        self._machine()

    # -- what holds --------------------------------------------------------------------------------

    def _machine(self) -> ClassicGroup | ConsumerGroup | None:
        async def find() -> None:
            loaded = self.world.groups._memory.find(GROUP)
            found.append(None if loaded is None else loaded.machine)

        found: list[Any] = []
        self.run(find())
        machine = found[0]
        assert machine is None or isinstance(machine, ClassicGroup | ConsumerGroup)
        return machine

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        seen: dict[int, str] = {}
        for client in self.clients:
            for number in client.has:
                assert number not in seen, f"{client.name} and {seen[number]} read {number}"
                seen[number] = client.name

    @invariant()
    def the_epoch_never_goes_back(self) -> None:
        machine = self._machine() if hasattr(self, "world") else None
        if machine is not None:
            assert machine.generation >= self.floor

    def teardown(self) -> None:
        """Leave all alone: each partition comes to one reader, and what is journaled is that."""
        try:
            if hasattr(self, "world"):
                self._come_to_rest()
        finally:
            self.run(self._close())
            self.runner.__exit__()
            self.folder.cleanup()

    async def _close(self) -> None:
        if hasattr(self, "world"):
            for task in self.acting.values():
                task.cancel()
            await self.world.close()

    def _come_to_rest(self) -> None:
        if self.world.committer.gate is not None:
            self.the_journal_answers(is_well=True)
        for _ in range(QUIET_ROUNDS_MAX):
            self.run(pass_ms(ROUND_MS))
            for _ in range(3):
                self.run(self._act(self.clients))
                self.no_partition_has_two_readers()
            if self._is_at_rest():
                break
        policy = self.world.settings.migration_policy
        taken = [client for client in self.clients if not client.is_refused]
        if policy is MigrationPolicy.BIDIRECTIONAL:
            assert taken == self.clients
        read = sorted(number for client in taken for number in client.has)
        assert read == (list(range(PARTITIONS)) if self.clients else [])
        machine = self._machine()
        assert machine is not None or not self.clients
        if machine is None:
            return
        assert machine.state is (GroupState.STABLE if self.clients else GroupState.EMPTY)
        shown = owned(machine, self.topic_id)
        assert sorted(map(sorted, shown.values())) == sorted(sorted(client.has) for client in taken)
        if self.clients:
            self.the_coordinator_is_killed()
            again = self._machine()
            assert again is not None
            assert type(again) is type(machine)
            assert again.generation == machine.generation
            assert owned(again, self.topic_id) == shown

    def _is_at_rest(self) -> bool:
        machine = self._machine()
        state = GroupState.EMPTY if machine is None else machine.state
        if not self.clients:
            return state is GroupState.EMPTY
        read = sum(len(client.has) for client in self.clients)
        return state is GroupState.STABLE and read == PARTITIONS


def owned(machine: ClassicGroup | ConsumerGroup, topic_id: bytes) -> dict[str, Numbers]:
    """The partitions of each member, as the coordinator has them."""
    if isinstance(machine, ConsumerGroup):
        return {
            member.member_id: member.owned.get(topic_id, NOTHING)
            for member in machine.members.values()
        }
    found = {}
    for member in machine.roster:
        assignment = read_assignment(member.assignment)
        assert assignment is not None
        found[member.member_id] = frozenset(assignment.partitions.get(TOPIC, ()))
    return found


Migration.TestCase.settings = settings(stateful_step_count=40)
TestMigration = pytest.mark.slow(Migration.TestCase)
