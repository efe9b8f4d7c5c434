"""A store whose blocks are read once per zone: each is asked of the agent that owns it there.

Decorates `get_versioned` for ranges of one aligned block; everything else passes through. Whatever
a peer does or doesn't do, the answer is the store's: a block that doesn't come, or of another
version of its object than the store itself gave to this agent, is read directly.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from typing_extensions import Buffer

from penstock.model.errors import RetryableError
from penstock.peers.blocks import OwnBlocks
from penstock.peers.client import PeerAwayError
from penstock.peers.codec import RANGES_BYTES_MAX, RANGES_MAX, BlockRange, FrameKind, encode_blocks
from penstock.peers.receive import Frame, UnknownCallError
from penstock.ports.clock import Clock
from penstock.ports.objects import (
    ObjectInfo,
    ObjectStore,
    SignedMethod,
    Versioned,
    get_versioned,
    sign_through,
)
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

BLOCKS_PATH: Final = "/peer/v2/blocks"
BLOCKS_PATH_UNVERSIONED: Final = "/peer/v1/blocks"
"""Path of releases that know no versions; served to them, and not asked."""
AVOID: Final = Backoff(first_s=1.0, most_s=30.0)
"""How long a peer isn't asked that didn't answer."""


class PeerAgent(NamedTuple):
    """A live agent of this zone: its id, and HOST:PORT of its HTTP port."""

    agent_id: int
    address: str


class Calls(Protocol):
    """The part of `penstock.peers.client.PeerClient` that is needed here."""

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        """Make one call; see there."""
        ...


class OwnerOf(Protocol):
    """`penstock.placement.rendezvous.owner_of`."""

    def __call__(self, key: bytes, members: Sequence[int]) -> int | None:
        """The member that has a key; None when there are no members."""
        ...


@dataclass(slots=True)
class ZoneCounts:
    """Counts of blocks since the start, by where they came from."""

    own: int = 0
    """Read for ourselves, as their owner."""
    peer: int = 0
    """Got from a peer."""
    refused: int = 0
    """Read directly, since the peer answered without them, or had them of another version."""
    away: int = 0
    """Read directly, since the peer did not answer."""


class ZoneStore:
    """Implements `ObjectStore`. Event loop only.

    Args:
        agents: gives the live agents of this zone by id, each with HOST:PORT of its HTTP port.
            This agent may be among them.
        own: blocks that this agent owns.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        agent_id: int,
        agents: Callable[[], Mapping[int, str]],
        owner_of: OwnerOf,
        own: OwnBlocks,
        calls: Calls,
        block_bytes: int,
        clock: Clock,
    ) -> None:
        self._store = store
        self._agent_id = agent_id
        self._agents = agents
        self._owner_of = owner_of
        self._own = own
        self._calls = calls
        self._block_bytes = block_bytes
        self._clock = clock
        self._avoided: dict[str, _Avoided] = {}
        self._waiting: dict[PeerAgent, list[_Ask]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = ZoneCounts()

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        await self._store.put(key, parts, if_absent=if_absent)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        wanted = BlockRange(key, start, end)
        if start % self._block_bytes or not 0 < wanted.length <= self._block_bytes:
            return await self._read(wanted)
        owner = self._owner(wanted)
        if owner is None:
            self.counts.own += 1
            return await self._own.read(wanted)
        found = await self._ask(owner, wanted)
        if found is not None:
            self.counts.peer += 1
            return found
        return await self._read(wanted)

    async def get_directly(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.CachingStore`."""
        # Peers that ask this agent must not get what wasn't right here either.
        wanted = BlockRange(key, start, end)
        self._own.forget(wanted)
        return await self._read(wanted)

    async def _read(self, wanted: BlockRange) -> Versioned:
        found = await get_versioned(self._store, wanted.key, wanted.start, wanted.end)
        self._own.saw(wanted.key, found.version)
        return found

    async def size(self, key: str) -> int:
        """See the port."""
        return await self._store.size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        await self._store.delete(keys)

    async def sign(self, method: SignedMethod, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See `penstock.ports.objects.SigningStore`."""
        return await sign_through(self._store, method, keys, seconds)

    async def close(self) -> None:
        """End calls under way; callers that wait for them read the store."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- who is asked --------------------------------------------------------------------------

    def _owner(self, wanted: BlockRange) -> PeerAgent | None:
        """Whom to ask for a block; None: this agent reads it."""
        agents = self._agents()
        # Who was silent is passed over, as if it were gone: its blocks then have one owner still,
        # and are not downloaded by everybody until it is declared dead.
        usable = [
            agent_id
            for agent_id, address in agents.items()
            if agent_id == self._agent_id or not self._is_avoided(address)
        ]
        block = f"{wanted.key}#{wanted.start // self._block_bytes}".encode()
        owner = self._owner_of(block, usable)
        if owner is None or owner == self._agent_id:
            return None
        return PeerAgent(owner, agents[owner])

    def _is_avoided(self, address: str) -> bool:
        avoided = self._avoided.get(address)
        return avoided is not None and self._clock.monotonic_s() < avoided.until_s

    def _avoid(self, address: str) -> None:
        before = self._avoided.get(address)
        failures = 1 if before is None else before.failures + 1
        until_s = self._clock.monotonic_s() + AVOID.after(failures)
        self._avoided[address] = _Avoided(until_s, failures)

    # -- asking --------------------------------------------------------------------------------

    async def _ask(self, owner: PeerAgent, wanted: BlockRange) -> Versioned | None:
        """The block from its owner; None if it did not come, or isn't to be used."""
        loop = asyncio.get_running_loop()
        ask = _Ask(wanted, loop.create_future())
        waiting = self._waiting.get(owner)
        if waiting is None:
            # What else is asked in this turn of the loop goes in the same call: a reader that
            # finds a block missing asks for those ahead of it at once.
            waiting = self._waiting[owner] = []
            loop.call_soon(self._send, owner)
        waiting.append(ask)
        return await ask.answer

    def _send(self, owner: PeerAgent) -> None:
        asks = self._waiting.pop(owner)
        for batch in _batches(asks):
            task = asyncio.get_running_loop().create_task(
                self._call(owner, batch), name=f"ask agent {owner.agent_id}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, owner: PeerAgent, asks: "Sequence[_Ask]") -> None:
        def on_frame(frame: Frame) -> None:
            if frame.kind == FrameKind.END:
                return
            if frame.index < len(asks):
                ask = asks[frame.index]
                if frame.kind == FrameKind.VERSION:
                    ask.version = bytes(frame.payload).decode("utf-8", "replace")
                    return
                found = self._usable(ask, frame)
                if found is None:
                    self.counts.refused += 1
                ask.settle(found)

        away = False
        try:
            await self._calls.call(
                owner.address,
                BLOCKS_PATH,
                encode_blocks([ask.wanted for ask in asks]),
                on_frame=on_frame,
                payload_bytes_max=[ask.wanted.length for ask in asks],
            )
            self._avoided.pop(owner.address, None)
        except PeerAwayError as error:
            heard(Cause.PEER_BLOCKS, error, logger, "blocks are read from the store")
            away = True
            self._avoid(owner.address)
        except UnknownCallError as error:
            # Of an older release: its blocks belong to others until it is replaced.
            self._avoid(owner.address)
            heard(Cause.PEER_BLOCKS, error, logger, "blocks are read from the store")
        except RetryableError as error:
            # It answers, but not with these.
            heard(Cause.PEER_BLOCKS, error, logger, "blocks are read from the store")
        finally:
            for ask in asks:
                if ask.settle(None):
                    if away:
                        self.counts.away += 1
                    else:
                        self.counts.refused += 1

    def _usable(self, ask: "_Ask", frame: Frame) -> Versioned | None:
        wanted = ask.wanted
        if frame.kind != FrameKind.DATA or len(frame.payload) != wanted.length:
            return None
        version = ask.version or None
        if ask.version is None or self._own.is_stale(wanted.key, version):
            return None
        return Versioned(frame.payload, version)

    # Last, since it hides the type of that name from what follows.
    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        return self._store.list(prefix, after=after)


@dataclass(slots=True)
class _Ask:
    wanted: BlockRange
    answer: "asyncio.Future[Versioned | None]"
    version: str | None = None
    """The peer's answer: "" where the store has no versions; None: it hasn't given one yet."""

    def settle(self, found: Versioned | None) -> bool:
        """Give the answer; false if there is one already, or the caller has left."""
        if self.answer.done():
            return False
        self.answer.set_result(found)
        return True


class _Avoided(NamedTuple):
    until_s: float
    failures: int


def _batches(asks: "Sequence[_Ask]") -> "list[list[_Ask]]":
    """Cut what is asked into calls of allowed size."""
    batches: list[list[_Ask]] = []
    room = 0
    for ask in asks:
        if not batches or len(batches[-1]) == RANGES_MAX or room < ask.wanted.length:
            batches.append([])
            room = RANGES_BYTES_MAX
        batches[-1].append(ask)
        room -= ask.wanted.length
    return batches
