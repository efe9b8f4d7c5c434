"""One agent of the simulated cluster: the real parts, as the app has them, on simulated ports.

An agent has lives, as a supervised process has: `start` begins one, on a node of its own. Between
them stay its replica's directory (not after a power loss), its WAL's device, and its id.
"""

from __future__ import annotations

import asyncio
import shutil
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.log.wals.names import read_wal_id
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.peers.client import PeerAwayError
from penstock.peers.codec import WalRange, decode_blocks, decode_wal
from penstock.peers.receive import Frame
from penstock.peers.serve import serve_blocks, serve_wal
from penstock.peers.standing import STANDING_PATH, decode_asked, serve_standing
from penstock.peers.zone import BLOCKS_PATH
from penstock.state.commands import DrainAgent
from penstock.state.rows import AgentStatus
from penstock.state.schema import FEATURE_LEVEL_MAX
from sim.api import BLOCK_BYTES
from sim.history import ViolationError
from sim.identity import are_batches
from sim.inherited import InheritedStore
from sim.parts import Parts, assemble
from support.peer_answers import read_answer
from support.simulated.device import SimulatedDevice
from support.simulated.inline_executor import InlineExecutor
from support.simulated.link import SimulatedLink
from support.simulated.store import SimulatedStore
from support.simulated.virtual_loop import VirtualClock

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
        self.is_lost = False
        """Its cluster is: it doesn't start again."""
        self.level_max = world.profile.level
        """The feature level that its release knows."""
        self.cut_from_clients = False
        self.cut_from_peers = False
        self._journal_cut = self._store_cut = False
        self._is_ending = False
        self.wal_taken = False
        self.is_astray = False
        """Its settings name another cluster's journal and store."""
        self._store_links: list[SimulatedLink] = []
        self.store_permille = 0
        self.expected: list[str] = []

    def __repr__(self) -> str:
        return self.name

    # -- lives -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life, unless one is going on."""
        if self.is_lost or not self.node.dead:
            return
        self.life += 1
        self._is_ending = False
        self._leave_locks()
        if self.wal_taken:
            # What was in it is in the bucket: it begins anew there, or on a new volume.
            if self.chance.happens(0.5) and self._is_wal_emptied():
                self.device = SimulatedDevice()
            self.wal_taken = False
        self.node = self.loop.node(f"{self.name}.{self.life}")
        self.world.note(f"{self.name} starts")
        self.loop.spawn(self.node, self._live(self.life), name=f"{self.name} life {self.life}")

    def _leave_locks(self) -> None:
        """Give this life copies of the files of the one before. That was a process: what it had
        open is closed, and it holds no locks. Of a simulated one SQLite doesn't know that."""
        before, self.folder = self.folder, self.world.folder / f"{self.name}.{self.life}"
        if before.is_dir():
            shutil.copytree(before, self.folder, ignore=shutil.ignore_patterns("*-shm"))
            shutil.rmtree(before)

    def _is_wal_emptied(self) -> bool:
        """Whether another agent has what its device held. Since somebody said so, a later life
        may have written there: a takeover is told of after it is done, by each who asked."""
        wal_id = read_wal_id(self.device)
        return wal_id is not None and self.world.oracle.is_emptied(wal_id, but_by=self.agent_id)

    async def _live(self, life: int) -> None:
        chance = self.chance
        is_astray = self.is_astray
        world = self.world
        journal = (world.other_journal if is_astray else world.journal).connect()
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
            cluster_id=(world.other_journal if is_astray else world.journal).cluster_id,
            store=SimulatedStore(world.other_bucket if is_astray else world.bucket, link),
            parent=self._parent_store(link),
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
            if is_astray:
                # It had nothing to lose; no client is sent there.
                world.note(f"{self.name} is an agent of another cluster")
            elif self.life == life and not self.node.dead:
                self.broker = parts.broker
                self.ready.set()
                self.world.note(f"{self.name} is ready, epoch {parts.order.epoch}")

    def _parent_store(self, link: SimulatedLink) -> SimulatedStore:
        world = self.world
        if world.parent_bucket is None:
            return SimulatedStore(world.bucket, link)
        return InheritedStore(world, world.parent_bucket, link)

    def _ended(self, error: BaseException) -> None:
        """The process ends by itself; its supervisor starts it anew."""
        if self.node.dead:
            return
        if self._is_ending:
            return
        self._is_ending = True
        self.world.note(f"{self.name} ends: {type(error).__name__}: {error}")
        self.world.ended(self, error)
        # A process doesn't end in an instant: what its event loop holds may still run.
        life = self.life
        self.loop.call_later(
            self.chance.uniform(0, 0.05),
            self._end,
            life,
            context=self.loop.context_of(self.loop.world),
        )

    def _end(self, life: int) -> None:
        if self.node.dead or self.life != life:
            return
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
        self.world.rot.forget_device(self.device)
        self.device = self.device.power_loss(chance)
        shutil.rmtree(self.folder, ignore_errors=True)

    def move_to_another_host(self) -> None:
        """Nothing that it kept is there."""
        self.crash()
        self.world.rot.forget_device(self.device)
        self.device = SimulatedDevice()
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

    def upgrade(self) -> None:
        """Start with the next release."""
        if self.level_max < FEATURE_LEVEL_MAX:
            self.world.note(f"{self.name} is upgraded")
            self._die_quietly()
            self.level_max = FEATURE_LEVEL_MAX
            self.start()

    def stray(self) -> None:
        """Start with the settings of another cluster."""
        self.crash()
        self.is_astray = True
        self.world.note(f"{self.name} goes astray")
        self.start()

    def come_home(self) -> None:
        """Start with its own settings again."""
        if self.is_astray:
            self._die_quietly()
            self.is_astray = False
            self.start()

    def _die_quietly(self) -> None:
        if not self.node.dead:
            self._die()

    async def take_over(self, owner: Agent) -> None:
        """Move another agent's WAL to the bucket, if that was fenced."""
        parts, node = self.parts, self.node
        if parts is None or parts.log is None:
            return
        self.world.note(f"{self.name} takes over {owner.name}'s WAL")
        work = self.loop.spawn(node, parts.log.take_over(owner.device, deadline_s=5.0))
        # The script ends when all is healed, and the takeover may go on.
        work.add_done_callback(partial(self._judge_takeover, owner))
        until_s = self.loop.time() + 12
        while not work.done() and not node.dead and self.loop.time() < until_s:
            await asyncio.sleep(0.05)

    def _judge_takeover(self, owner: Agent, work: asyncio.Task[int]) -> None:
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            owner.wal_taken = True
            self.world.history.count("WAL taken over")
            if work.result():
                self.world.history.count("WAL taken over with records")
        elif isinstance(
            error, RetryableError | ConflictError | NotFoundError | FencedError
        ) or self._meets_damage(error, owner):
            self.world.history.count(f"WAL not taken over: {type(error).__name__}")
        else:
            text = "".join(traceback.format_exception(error))
            self.world.violated(ViolationError("takeover-failed", f"{owner}: {text}"))

    def _meets_damage(self, error: BaseException, owner: Agent) -> bool:
        return isinstance(error, CorruptDataError) and self.world.rot.is_in(owner.device)

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
        link.slow_permille = 3 * permille
        link.delay_s = (0.001, 0.01)

    def peer_calls(self) -> PeerCalls:
        """How this life calls other agents."""
        return PeerCalls(self)

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
        self.come_home()
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

    async def answer_from_wal(
        self, wal_key: int, generation: int, position: int, length: int
    ) -> None:
        """Read from its WAL for another agent, which may be behind."""
        if self.parts is None or self.parts.log is None:
            return
        try:
            found = await self.parts.log.read_own_wal(wal_key, generation, position, length)
        except PenstockError as error:
            self.world.history.count(f"asked behind: {type(error).__name__}")
        else:
            self.world.history.count("asked behind")
            self.check_read(found, f"generation {generation} at {position}")

    def check_read(self, found: bytes, where: str) -> None:
        """What is read of its WAL for others is what was written there."""
        if not self.world.rot.is_stored and not are_batches(found, is_whole=True):
            self.world.history.violate("stale-wal-read", f"{self} {where}")

    def is_cut_off(self, seconds: float) -> bool:
        """Whether it serves, and has not read the journal's head for so long."""
        parts = self.parts
        if self.broker is None or parts is None or parts.order is None or self.node.paused:
            return False
        confirmed_s: float = parts.order.head_confirmed_s
        return self.clock.monotonic_s() - confirmed_s > seconds

    def others_in_its_view(self) -> list[int]:
        """The agents that it may send clients to."""
        parts = self.parts
        if parts is None or parts.quiet_agents is None or self.broker is None:
            return []
        quiet = parts.quiet_agents()
        return [
            other.agent_id
            for other in self.broker.view.agents()
            if other.agent_id != self.agent_id
            and other.status is AgentStatus.LIVE
            and other.agent_id not in quiet
        ]

    def dump(self) -> tuple[int, list[bytes]]:
        """The replica's position and canonical dump."""
        assert self.parts is not None
        return self.parts.dump()

    def let_go(self) -> None:
        """Close files, whatever state it is in."""
        if self.parts is not None:
            self.parts.let_go()


class PeerCalls:
    """Calls of one agent to others, in the bytes that go over HTTP. Implements `Calls`."""

    def __init__(self, caller: Agent) -> None:
        self._caller = caller
        self._random = caller.chance.fork()

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        """See `PeerClient.call`."""
        caller = self._caller
        callee = caller.world.agent_at(address)
        if callee is None or callee.parts is None or callee.parts.log is None:
            raise PeerAwayError("ask peer", address, "connection refused")
        parts = callee.parts

        async def serve() -> bytes:
            if path == BLOCKS_PATH:
                ranges = decode_blocks(body, block_bytes=BLOCK_BYTES)
                answer = serve_blocks(parts.own_blocks, ranges)
            elif path == STANDING_PATH:
                assert parts.standing_of is not None
                answer = serve_standing(parts.standing_of(decode_asked(body)))
            else:
                answer = serve_wal(read_wal, decode_wal(body))
            return b"".join([bytes(part) async for part in answer])

        async def read_wal(wanted: WalRange) -> bytes:
            found: bytes = await parts.log.read_own_wal(
                wanted.wal_key, wanted.generation, wanted.position, wanted.length
            )
            callee.check_read(found, f"generation {wanted.generation} at {wanted.position}")
            return found

        link = SimulatedLink(
            caller.loop, self._random, server=callee.node, timeout_s=PEER_PATIENCE_S
        )
        link.cut = caller.cut_from_peers or callee.cut_from_peers
        try:
            data = await link.call("ask peer", address, serve)
        except RetryableError as error:
            raise PeerAwayError("ask peer", address, str(error)) from error
        data = caller.world.rot.changed_reply(data, self._random)
        read_answer(data, on_frame, payload_bytes_max)
