"""Replies that hold regions of files, over real sockets: whole, in order, ended as others are."""

import asyncio
import contextlib
import os
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kafka.broker import Broker
from penstock.log.fetch.regions import FileRegion
from penstock.system.files import PosixFile
from support.examples import examples
from support.loopback import FETCH, PRODUCE, Held, api_versions, reply, request, serving
from support.waiting import turns, until

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sendfile"), reason="no sendfile"),
    pytest.mark.usefixtures("either_loop"),
]
FILE_BYTES = 9 << 20


class Files:
    """A file of random bytes, and replies made of it."""

    def __init__(self, folder: Path) -> None:
        self.data = Random(5).randbytes(FILE_BYTES)
        self.path = folder / "object"
        self.path.write_bytes(self.data)
        self.file = PosixFile(os.open(self.path, os.O_RDONLY))

    def region(self, position: int, length: int) -> FileRegion:
        return FileRegion(self.file, position, length)

    def bytes_of(self, parts: list[Any]) -> bytes:
        return b"".join(
            self.data[part.position : part.position + part.length]
            if isinstance(part, FileRegion)
            else part
            for part in parts
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


PARTS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=300),
        st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(1, FILE_BYTES)),
        st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(1, 5000)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(0.25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, min_size=1, max_size=4), st.sampled_from((1000, 100_000, 8 << 20)))
def test_what_is_sent_from_files_is_what_views_would_be(
    broker: Broker,
    raw: Any,
    files: Files,
    made: list[list[Any]],
    chunk_bytes: int,
) -> None:
    """Several replies of any parts, to readers that take much or little at a time."""
    replies = [
        [
            part
            if isinstance(part, bytes)
            else files.region(part[0], min(part[1], FILE_BYTES - part[0]))
            for part in parts
        ]
        for parts in made
    ]
    raw(FETCH, lambda context, body: replies[context.correlation_id])

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            # Between them others, which must stay in order with them.
            for number in range(len(replies)):
                writer.write(request(FETCH, 4, number, b"") + api_versions(100 + number))
            for number, parts in enumerate(replies):
                size, found = struct.unpack(">ii", await reader.readexactly(8))
                body = bytearray()
                while len(body) < size - 4:
                    body += await reader.read(min(chunk_bytes, size - 4 - len(body)))
                assert found == number
                assert bytes(body) == files.bytes_of(parts)
                assert (await reply(reader))[0] == 100 + number

    asyncio.run(run())


async def test_replies_of_produces_beside_regions_stay_in_order(
    broker: Broker, raw: Any, files: Files
) -> None:
    produce = Held()
    raw(FETCH, lambda context, body: [files.region(0, FILE_BYTES)])
    raw(PRODUCE, produce)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(
            request(PRODUCE, 3, 1, b"")
            + request(FETCH, 4, 2, b"")
            + request(PRODUCE, 3, 3, b"")
            + request(FETCH, 4, 4, b"")
        )
        for number in (1, 2, 3, 4):
            if number in (1, 3):
                await until(lambda number=number: len(produce.futures) > number // 2)
                produce.futures[number // 2].set_result([b"%d" % number])
            found, body = await reply(reader)
            assert found == number
            assert body == (b"%d" % number if number in (1, 3) else files.data)


async def test_500_readers_that_never_read_cost_no_memory_and_hinder_nobody(
    broker_with: Any, raw: Any, files: Files
) -> None:
    """Regions aren't in memory: beyond a page each, nothing counts against the budget."""
    raw(FETCH, lambda context, body: [b"head", files.region(0, FILE_BYTES)])
    broker = broker_with(server_budget_bytes=8 << 20)
    async with serving(broker) as (server, connect):
        healthy_reader, healthy_writer = await connect()
        clients = [await connect() for _ in range(100)]
        for _, writer in clients:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"".join(request(FETCH, 4, n, b"") for n in range(10)))
        await until(lambda: sum(c._writer.is_held_up for c in server._host.connections) == 100)
        assert server.data.used_bytes < 1 << 20
        healthy_writer.write(request(FETCH, 4, 7, b""))
        found, body = await reply(healthy_reader)
        assert (found, body) == (7, b"head" + files.data)


async def test_a_stalled_reader_of_a_region_is_disconnected(
    broker: Broker, raw: Any, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    raw(FETCH, lambda context, body: [files.region(0, FILE_BYTES)])
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(FETCH, 4, 1, b""))
        await until(lambda: any(c._writer.is_held_up for c in server._host.connections))
        await turns(100)
        server.look()
        clock.advance(broker.settings.stall_timeout_s - 1)
        server.look()
        await turns()
        assert server.connection_count == 1
        clock.advance(2)
        server.look()
        await until(lambda: server.connection_count == 0)
    assert caplog.text.count("nothing moved") == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_a_reader_that_closes_in_the_middle_hurts_nobody(
    broker: Broker, raw: Any, files: Files, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is it worth a line in the log."""
    raw(FETCH, lambda context, body: [files.region(0, FILE_BYTES)])
    async with serving(broker) as (server, connect):
        other_reader, other_writer = await connect()
        for taken in (0, 1, 100_000, 3_000_000):
            reader, writer = await connect()
            writer.write(request(FETCH, 4, 1, b""))
            await reader.readexactly(taken)
            if reset:
                writer.transport.abort()
            else:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            other_writer.write(request(FETCH, 4, 1, b""))
            assert (await reply(other_reader))[1] == files.data
        await until(lambda: server.connection_count == 1)
    assert not caplog.records


async def test_a_file_deleted_while_it_is_sent_arrives_whole(
    broker: Broker, raw: Any, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    given_out = [files.region(0, FILE_BYTES)]
    data, path = files.data, files.path
    # The reply alone holds the file.
    del files
    raw(FETCH, lambda context, body: [given_out.pop()])
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(FETCH, 4, 1, b""))
        await until(lambda: any(c._writer.is_held_up for c in server._host.connections))
        path.unlink()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await reply(reader))[1] == data


async def test_a_file_that_ends_early_ends_the_connection_with_one_line(
    broker: Broker, raw: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its length has been promised: nothing else can be sent in place of the bytes."""
    files = Files(tmp_path)
    raw(FETCH, lambda context, body: [files.region(FILE_BYTES - 10, 20)])
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 4, 1, b""))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until(lambda: server.connection_count == 0)
    assert caplog.text.count("the file ends there") == 1


async def test_a_drained_connection_gets_the_rest_of_its_region(
    broker: Broker, raw: Any, files: Files
) -> None:
    raw(FETCH, lambda context, body: [files.region(0, FILE_BYTES)])
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(FETCH, 4, 1, b""))
        await until(lambda: any(c._writer.is_held_up for c in server._host.connections))
        draining = asyncio.ensure_future(server.drain(DRAIN_S))
        await turns()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await reply(reader))[1] == files.data
        assert await reader.read() == b""
        await draining


async def test_a_bad_request_behind_a_region_ends_the_connection_after_it(
    broker: Broker, raw: Any, files: Files
) -> None:
    raw(FETCH, lambda context, body: [files.region(0, FILE_BYTES)])
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 4, 1, b"") + request(9999, 0, 2, b""))
        assert (await reply(reader))[1] == files.data
        assert await reader.read() == b""


DRAIN_S = 30.0
