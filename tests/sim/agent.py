"""One agent of the simulated cluster: the real parts, as the app has them, on simulated ports.

An agent has lives, as a supervised process has: `start` begins one, on a node of its own. Between
them stay its replica's directory (not after a power loss), its WAL's device, and its id.
"""

from __future__ import annotations

import asyncio
import shutil
import traceback
from typing import TYPE_CHECKING, Any

from penstock.metadata.commands import DrainAgent
from penstock.model.errors import PenstockError, RetryableError
from penstock.testing.device import SimulatedDevice
from penstock.testing.inline_executor import InlineExecutor
from penstock.testing.simulated_link import SimulatedLink
from penstock.testing.simulated_store import SimulatedStore
from penstock.testing.virtual_loop import VirtualClock
from sim.history import ViolationError
from sim.parts import Parts, assemble

if TYPE_CHECKING:
    from penstock.kafka.broker import Broker
    from sim.chance import Chance
    from sim.world import World

RESTART_S = (0.1, 1.5)
STORE_PATIENCE_S = 3.0
PEER_PATIENCE_S = 0.5
FIRST_ID = 101


class Agent:
    """See the module. `broker`: what serves clients, while it does."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.loop = world.loop
        self.number = number
        self.agent_id = FIRST_ID + number
        self.name = f"agent{number}"
        self.zone = world.zones[number % len(world.zones)]
        self.endpoint = f"{self.name}:9092"
        self.peer = f"{self.name}:9093"
        self.chance = world.chance.fork()
        self.clock = VirtualClock(world.loop)
        self.device = SimulatedDevice()
        self.folder = world.folder / self.name
        self.life = 0
        self.node = world.loop.node(f"{self.name}.0")
        self.node.dead = True
        self.broker: Broker | None = None
        self.parts: Parts | None = None
        self.ready = asyncio.Event()
        self.removed = False
        self.cut_from_clients = False
        self.cut_from_peers = False
        self._journal_cut = self._store_cut = False
        self._started = False
        self._store_links: list[SimulatedLink] = []
        self.store_permille = 0
        self.expected: list[str] = []

    def __repr__(self) -> str:
        return self.name

    # -- lives -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life, unless one is going on."""
        if not self.node.dead:
            return
        self.life += 1
        self.node = self.loop.node(f"{self.name}.{self.life}")
        self.world.note(f"{self.name} starts")
        self.loop.spawn(self.node, self._live(self.life), name=f"{self.name} life {self.life}")

    async def _live(self, life: int) -> None:
        chance = self.chance
        journal = self.world.journal.connect()
        journal.cut = self._journal_cut
        link = SimulatedLink(
            self.loop,
            chance.fork(),
            server=self.loop.world,
            timeout_s=STORE_PATIENCE_S,
        )
        link.cut = self._store_cut
        self._store_links = [link]
        self._set_store_weather(link)
        self.folder.mkdir(exist_ok=True)
        parts = Parts(
            agent=self,
            journal=journal,
            store=SimulatedStore(self.world.bucket, link),
            pool=InlineExecutor(chance.fork(), workers=4),
            replica_pool=InlineExecutor(chance.fork(), workers=1),
            random=chance.fork(),
        )
        self.parts = parts
        try:
            await assemble(parts, on_end=self._ended)
        except PenstockError as error:
            self._ended(error)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self.world.violated(ViolationError("agent-died", f"{self.name}: {text}"))
        else:
            if self.life == life and not self.node.dead:
                self.broker = parts.broker
                self.ready.set()
                self.world.note(f"{self.name} is ready, epoch {parts.order.epoch}")

    def _ended(self, error: BaseException) -> None:
        """The process ends by itself; its supervisor starts it anew."""
        if self.node.dead:
            return
        self.world.note(f"{self.name} ends: {type(error).__name__}: {error}")
        self.world.ended(self, error)
        self._die()
        delay_s = self.chance.uniform(*RESTART_S)
        self.loop.call_later(delay_s, self.start, context=self.loop.context_of(self.loop.world))

    def _die(self) -> None:
        self.loop.kill(self.node)
        self.broker = None
        self.ready.clear()
        if self.parts is not None:
            self.parts.journal.break_off("the agent died")
            self.world.forget_connection(self.parts.journal)
            self.parts.let_go()
            self.parts = None

    def crash(self) -> None:
        """The process dies; the machine goes on."""
        if not self.node.dead:
            self.world.note(f"{self.name} crashes")
            self._die()

    def power_loss(self, chance: Chance) -> None:
        """The machine dies: its replica is gone, and what its device had not synced."""
        if not self.node.dead:
            self.world.note(f"{self.name} loses power")
            self._die()
        self.device = self.device.power_loss(chance)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.note(f"{self.name} pauses")
        self.loop.pause(self.node)

    def resume(self) -> None:
        """SIGCONT."""
        if self.node.paused:
            self.world.note(f"{self.name} goes on")
            self.loop.resume(self.node)

    # -- what is between it and others -------------------------------------------------------------

    def cut_journal(self, *, cut: bool) -> None:
        """Let nothing through to the journal, or again."""
        self.world.note(f"{self.name} {'cut from' if cut else 'reaches'} the journal")
        self._journal_cut = cut
        if self.parts is not None:
            self.parts.journal.cut = cut
            if cut:
                self.parts.journal.break_off("the network is cut")

    def cut_store(self, *, cut: bool) -> None:
        """Let nothing through to the store, or again."""
        self.world.note(f"{self.name} {'cut from' if cut else 'reaches'} the store")
        self._store_cut = cut
        for link in self._store_links:
            link.cut = cut

    def set_store_weather(self, permille: int) -> None:
        """How often calls of the store go wrong."""
        self.store_permille = permille
        for link in self._store_links:
            self._set_store_weather(link)

    def _set_store_weather(self, link: SimulatedLink) -> None:
        permille = self.store_permille
        link.fail_permille = link.lost_permille = link.twice_permille = permille
        link.slow_permille = permille
        link.delay_s = (0.001, 0.01)

    def remote_wal(self) -> RemoteWalCalls:
        """How this life reads other agents' WALs."""
        return RemoteWalCalls(self)

    async def set_draining(self, *, draining: bool) -> None:
        """Ask it, as an operator does."""
        parts = self.parts
        if parts is None or parts.order is None:
            return
        order = parts.order

        async def ask() -> None:
            try:
                await order.commit([DrainAgent(agent=self.agent_id, draining=draining)])
            except PenstockError:
                pass

        self.world.note(f"{self.name} {'drains' if draining else 'drains no more'}")
        self.loop.spawn(self.node, ask(), name="drain")

    def heal(self) -> None:
        """Everything is well again."""
        self.clock.skew_ms = 0
        self.resume()
        self.cut_journal(cut=False)
        self.cut_store(cut=False)
        self.set_store_weather(0)
        self.cut_from_clients = self.cut_from_peers = False
        self.start()

    # -- what the end of a run asks ----------------------------------------------------------------

    def replica_position(self) -> int:
        """Applied and committed."""
        parts = self.parts
        return -1 if parts is None or parts.order is None else parts.order.position

    def dump(self) -> tuple[int, list[bytes]]:
        """The replica's position and canonical dump."""
        assert self.parts is not None
        return self.parts.dump()

    def let_go(self) -> None:
        """Close files, whatever state it is in."""
        if self.parts is not None:
            self.parts.let_go()


class RemoteWalCalls:
    """Calls of one agent to others for bytes of their WALs. Implements `RemoteWal`."""

    def __init__(self, caller: Agent) -> None:
        self._caller = caller
        self._random = caller.chance.fork()

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Any:
        """See `RemoteWal`."""
        caller = self._caller
        owner = caller.world.agent_by_id(agent)
        if owner is None or owner.parts is None or owner.parts.log is None:
            raise RetryableError("read WAL", f"agent {agent}", "connection refused")
        log = owner.parts.log
        link = SimulatedLink(
            caller.loop, self._random, server=owner.node, timeout_s=PEER_PATIENCE_S
        )
        link.cut = caller.cut_from_peers or owner.cut_from_peers
        return await link.call(
            "read WAL",
            f"agent {agent}",
            lambda: log.read_own_wal(wal_key, generation, position, length),
        )
