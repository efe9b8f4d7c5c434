"""Agents of a zone over real HTTP: one download per block, whoever is slow, dead or hostile."""

import asyncio
import contextlib
import http.client
import logging
import random
import socket

import pytest
from obstore.store import MemoryStore

from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.objects.bucket import BucketStore
from penstock.peers import BlockRange, ClusterSecret, PeerWal
from penstock.peers import zone as zone_module
from penstock.peers.client import PeerClient, PeerTimeouts
from penstock.peers.codec import FrameKind, WalRange, encode_blocks
from penstock.peers.zone import BLOCKS_PATH, BLOCKS_PATH_UNVERSIONED
from penstock.system.backoff import Backoff
from support.zone_rig import BLOCK_BYTES, SECRET, CountingStore, Zone, ZoneAgent

pytestmark = pytest.mark.usefixtures("either_loop")

OBJECTS = 4
BLOCKS = 6


async def _filled(**options: float) -> tuple[CountingStore, dict[str, bytes]]:
    store = CountingStore(BucketStore(MemoryStore()), **options)
    generator = random.Random(5)
    objects = {
        f"segments/{number}": generator.randbytes(BLOCKS * BLOCK_BYTES - 1000)
        for number in range(OBJECTS)
    }
    for key, data in objects.items():
        await store.put(key, [data])
    return store, objects


async def _read_all(agent: ZoneAgent, objects: dict[str, bytes]) -> None:
    async def read(key: str, data: bytes, start: int) -> None:
        end = min(start + BLOCK_BYTES, len(data))
        assert bytes(await agent.store.get_range(key, start, end)) == data[start:end]

    await asyncio.gather(
        *(
            read(key, data, start)
            for key, data in objects.items()
            for start in range(0, len(data), BLOCK_BYTES)
        )
    )


@pytest.mark.slow
async def test_a_block_is_downloaded_once_however_many_agents_ask() -> None:
    store, objects = await _filled(delay_s=0.02)
    async with Zone([ZoneAgent(number, store) for number in (1, 2, 3)]) as zone:
        await asyncio.gather(
            *(_read_all(agent, objects) for agent in zone.agents for _ in range(3))
        )
        await _read_all(zone.agents[0], objects)
        assert len(store.reads) == OBJECTS * BLOCKS
        assert set(store.reads.values()) == {1}
        shares = [agent.own.load_count for agent in zone.agents]
        assert sum(shares) == OBJECTS * BLOCKS
        assert all(shares), "each owns some"
        counts = zone.agents[0].store.counts
        assert counts.peer > 0
        assert counts.own > 0
        assert counts.away == counts.refused == 0


async def test_many_blocks_are_asked_for_in_one_call() -> None:
    store, objects = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        calls: list[int] = []
        asker = zone.agents[0]
        real = asker.client.call

        async def call(address, path, body, **options):  # type: ignore[no-untyped-def]
            calls.append(len(options["payload_bytes_max"]))
            await real(address, path, body, **options)

        asker.client.call = call  # type: ignore[method-assign]
        await _read_all(asker, objects)
        assert len(calls) == 1
        assert calls[0] == asker.store.counts.peer > 1


async def test_a_slow_store_does_not_look_like_a_dead_peer() -> None:
    """Three times the silence that is allowed: beats tell that the owner lives, and the block is
    still downloaded once."""
    store, objects = await _filled(delay_s=0.75)
    agents = [ZoneAgent(number, store) for number in (1, 2)]
    async with Zone(agents):
        await asyncio.gather(*(_read_all(agent, objects) for agent in agents))
        assert set(store.reads.values()) == {1}
        assert agents[0].store.counts.away == 0


async def test_a_dead_peer_costs_one_timeout_and_is_then_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long this process is kept from its processor in between.
    monkeypatch.setattr(zone_module, "AVOID", Backoff(first_s=600.0, most_s=600.0))
    store, objects = await _filled()
    # It listens and takes connections, and never answers: a stopped process.
    with socket.create_server(("127.0.0.1", 0), backlog=100) as stopped:
        async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
            for agent in zone.agents:
                agent.known[3] = f"127.0.0.1:{stopped.getsockname()[1]}"
            asker = zone.agents[0]
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            await _read_all(asker, objects)
            assert loop.time() - started_s >= 0.25
            away = asker.store.counts.away
            assert away > 0
            store.reads.clear()
            await _read_all(asker, objects)
            assert asker.store.counts.away == away, "not asked again"
            assert zone.agents[1].own.load_count > 0


async def test_a_refused_connection_and_a_cut_answer_are_read_directly() -> None:
    store, objects = await _filled()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n\x01")
            await writer.drain()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused = listener.getsockname()[1]
    async with Zone([ZoneAgent(1, store)]) as zone:
        (asker,) = zone.agents
        asker.known[2] = f"127.0.0.1:{unused}"
        asker.known[3] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await _read_all(asker, objects)
        assert asker.store.counts.away > 0
    server.close()
    await asyncio.sleep(0.05)


async def test_an_owner_whose_store_fails_makes_the_others_read_for_themselves() -> None:
    store, objects = await _filled()
    broken = CountingStore(store)
    broken.failing = True
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, broken)]) as zone:
        await _read_all(zone.agents[0], objects)
        assert zone.agents[0].store.counts.refused > 0
        assert zone.agents[0].store.counts.away == 0


async def test_errors_are_those_of_the_store() -> None:
    store, _ = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        for agent in zone.agents:
            with pytest.raises(NotFoundError):
                await agent.store.get_range("segments/none", 0, 10)
            with pytest.raises(CorruptDataError):
                await agent.store.get_range(
                    "segments/0", (BLOCKS - 1) * BLOCK_BYTES, BLOCKS * BLOCK_BYTES
                )


async def test_what_is_no_block_passes_through() -> None:
    store, objects = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        data = objects["segments/0"]
        assert bytes(await zone.agents[0].store.get_range("segments/0", 5, 9)) == data[5:9]
        both = await zone.agents[0].store.get_range("segments/0", 0, 2 * BLOCK_BYTES)
        assert bytes(both) == data[: 2 * BLOCK_BYTES]
        assert zone.agents[0].store.counts.own == 0
        assert zone.agents[0].store.counts.peer == 0


async def test_two_agents_that_take_each_other_for_the_owner_do_not_wait_for_each_other() -> None:
    store, objects = await _filled(delay_s=0.01)
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        one, two = zone.agents
        one.known = {2: two.address}
        two.known = {1: one.address}
        await asyncio.wait_for(asyncio.gather(_read_all(one, objects), _read_all(two, objects)), 60)
        assert one.store.counts.peer == two.store.counts.peer == OBJECTS * BLOCKS


async def test_without_the_secret_nothing_is_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def check_paths(address: str) -> None:
        for path, without in [
            ("/healthz", 401),
            ("/readyz", 401),
            ("/metrics", 401),
            ("/", 401),
            ("/v1/status", 401),
            ("/v1/other", 401),
            ("/peer/v1/blocks", 401),
            ("//peer/v1/blocks", 401),
            ("/metrics/../v1/status", 401),
        ]:
            assert _status(address, path, {}) == without, path
            assert _status(address, path, {"authorization": "Bearer guess-guess-guess"}) == without
            assert _status(address, path, {"authorization": f"Bearer {SECRET}"}) != 401

    store, objects = await _filled()
    stranger = ClusterSecret("another-secret-altogether")
    agents = [ZoneAgent(1, store, secret=stranger), ZoneAgent(2, store)]
    async with Zone(agents):
        # Data comes all the same, from the store.
        await _read_all(agents[0], objects)
        assert agents[0].store.counts.peer == 0
        assert agents[0].store.counts.refused > 0
        assert agents[1].own.load_count == 0
        with pytest.raises(RetryableError, match="401") as caught:
            await agents[0].client.call(
                agents[1].address,
                BLOCKS_PATH,
                encode_blocks([BlockRange("segments/0", 0, 10)]),
                on_frame=lambda _: None,
                payload_bytes_max=[10],
            )
        assert "secret-altogether" not in str(caught.value)
        await asyncio.to_thread(check_paths, agents[1].address)
    for text in (SECRET, "another-secret-altogether"):
        assert text not in caplog.text


def _status(address: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


async def test_runs_of_a_wal_are_read_from_its_owner() -> None:
    file = bytes(range(256)) * 100

    async def read_wal(wanted: WalRange) -> bytes:
        if wanted.wal_key != 4:
            raise NotFoundError("read WAL", f"WAL {wanted.wal_key}", "not this agent's")
        if wanted.generation != 7:
            raise RetryableError("read WAL", f"generation {wanted.generation}", "recycled")
        if wanted.position + wanted.length > len(file):
            raise CorruptDataError("read WAL", "wal-7", "shorter than that")
        return file[wanted.position : wanted.position + wanted.length]

    store, _ = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store, read_wal=read_wal)]) as zone:
        wal = PeerWal(zone.agents[0].client, address_of=zone.agents[0].known.get)
        assert bytes(await wal.read(2, 4, 7, 300, 5000)) == file[300:5300]
        with pytest.raises(RetryableError, match="recycled"):
            await wal.read(2, 4, 8, 300, 10)
        with pytest.raises(CorruptDataError, match="shorter"):
            await wal.read(2, 4, 7, len(file), 10)
        with pytest.raises(RetryableError, match="not this agent's"):
            await wal.read(2, 5, 7, 0, 10)
        with pytest.raises(RetryableError, match="away"):
            await wal.read(9, 4, 7, 0, 10)
        with pytest.raises(PenstockError, match="404"):
            await wal.read(1, 4, 7, 0, 10)


async def test_a_reused_connection_that_was_closed_meanwhile_is_no_dead_peer() -> None:
    answers = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        await reader.readuntil(b"\r\n\r\n")
        answers += 1
        writer.write(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n"
            b"\xff\0\0\0\0\0\0\0\0\r\n0\r\n\r\n"
        )
        await writer.drain()
        with contextlib.suppress(asyncio.IncompleteReadError):  # of the last client
            await reader.readuntil(b"\r\n\r\n")  # the second call: closed without an answer
        writer.transport.abort()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    client = PeerClient(ClusterSecret(SECRET), PeerTimeouts())
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for _ in range(3):
        await client.call(address, "/x", b"", on_frame=lambda _: None, payload_bytes_max=[])
    assert answers == 3
    client.close()
    server.close()
    await asyncio.sleep(0.05)


async def test_askers_of_an_older_release_get_no_version_frames() -> None:
    store, _ = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        for path, kinds in [
            (BLOCKS_PATH, [FrameKind.VERSION, FrameKind.DATA, FrameKind.END]),
            (BLOCKS_PATH_UNVERSIONED, [FrameKind.DATA, FrameKind.END]),
        ]:
            found: list[int] = []
            await zone.agents[0].client.call(
                zone.agents[1].address,
                path,
                encode_blocks([BlockRange("segments/0", 0, BLOCK_BYTES)]),
                on_frame=lambda frame, found=found: found.append(frame.kind),  # type: ignore[misc]
                payload_bytes_max=[BLOCK_BYTES],
            )
            assert found == kinds


async def test_a_peer_of_an_older_release_is_not_asked_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers 404; what it owns is read by others until it is replaced."""
    store, objects = await _filled()
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        monkeypatch.setattr("penstock.peers.zone.BLOCKS_PATH", "/peer/v3/blocks")
        await _read_all(zone.agents[0], objects)
        assert zone.agents[0].store.counts.peer == 0
        assert zone.agents[1].own.load_count == 0


async def test_a_call_ends_at_its_deadline_although_beats_come() -> None:
    store, _ = await _filled(delay_s=30)
    timeouts = PeerTimeouts(silence_s=0.25, deadline_s=0.4)
    async with Zone([ZoneAgent(1, store, timeouts=timeouts), ZoneAgent(2, store)]) as zone:
        with pytest.raises(RetryableError, match="within"):
            await zone.agents[0].client.call(
                zone.agents[1].address,
                BLOCKS_PATH,
                encode_blocks([BlockRange("segments/0", 0, BLOCK_BYTES)]),
                on_frame=lambda _: None,
                payload_bytes_max=[BLOCK_BYTES],
            )


async def test_a_reader_that_is_gone_does_not_take_the_block_from_the_others() -> None:
    store, objects = await _filled(delay_s=0.05)
    async with Zone([ZoneAgent(1, store), ZoneAgent(2, store)]) as zone:
        for agent in zone.agents:
            gone = asyncio.ensure_future(_read_all(agent, objects))
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        await _read_all(zone.agents[0], objects)
        assert set(store.reads.values()) == {1}
