"""Agents of one zone in one process, each with a real peer port, over one store that counts."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from typing_extensions import Buffer

from penstock.app.http.gate import HttpGate, HttpLimits
from penstock.app.http.peer_routes import PeerSources
from penstock.app.http_port import HttpServer, peer_application
from penstock.model.errors import RetryableError
from penstock.peers import ClusterSecret, OwnBlocks, PeerClient, ZoneStore
from penstock.peers.client import PeerTimeouts
from penstock.placement.rendezvous import owner_of
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.system.clock import SystemClock

BLOCK_BYTES = 64 << 10
SECRET = "a-secret-of-this-test"


class CountingStore:
    """Counts reads by (key, start); each takes `delay_s`, and fails while `failing`."""

    def __init__(self, store: ObjectStore, *, delay_s: float = 0.0) -> None:
        self.store = store
        self.delay_s = delay_s
        self.failing = False
        self.reads: Counter[tuple[str, int]] = Counter()

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.store.put(key, parts, if_absent=if_absent)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        self.reads[key, start] += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.failing:
            raise RetryableError("read", key, "the store is away")
        return await self.store.get_range(key, start, end)

    async def size(self, key: str) -> int:
        return await self.store.size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self.store.list(prefix, after=after)


class ZoneAgent:
    """One agent: its own blocks, its port, and its view of the zone."""

    def __init__(
        self,
        agent_id: int,
        store: ObjectStore,
        *,
        secret: ClusterSecret | None = None,
        timeouts: PeerTimeouts | None = None,
        block_bytes: int = BLOCK_BYTES,
        cache_bytes: int = 64 << 20,
        read_wal: Any = None,
    ) -> None:
        self.agent_id = agent_id
        self.own = OwnBlocks(store, bytes_max=cache_bytes)
        self.client = PeerClient(
            secret or ClusterSecret(SECRET), timeouts or PeerTimeouts(deadline_s=60)
        )
        self.known: dict[int, str] = {}
        self.store = ZoneStore(
            store,
            agent_id=agent_id,
            agents=lambda: self.known,
            owner_of=owner_of,
            own=self.own,
            calls=self.client,
            block_bytes=block_bytes,
            clock=SystemClock(),
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        gate = HttpGate("peer", HttpLimits(), SystemClock(), lambda port, happened: None)
        sources = PeerSources(own=self.own, block_bytes=block_bytes, read_wal=read_wal)
        self.http = HttpServer(
            peer_application(sources, ClusterSecret(SECRET), gate), gate, self.listener
        )

    async def close(self) -> None:
        """End its port and its calls."""
        self.client.close()
        await self.store.close()
        await self.own.close()
        await self.http.close()


class Zone:
    """Some agents who know one another; an async context manager."""

    def __init__(self, agents: Sequence[ZoneAgent]) -> None:
        self.agents = list(agents)

    async def __aenter__(self) -> Self:
        for agent in self.agents:
            agent.http.start()
            agent.known.update({other.agent_id: other.address for other in self.agents})
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents:
            await agent.close()


__all__ = ["BLOCK_BYTES", "SECRET", "CountingStore", "Zone", "ZoneAgent"]
