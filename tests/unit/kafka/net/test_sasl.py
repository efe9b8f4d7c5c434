"""Connections of a SASL listener: dialogues in tests/golden/sasl, limits, and ends."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.instruments import NoInstruments
from penstock.security.scram.credential import ScramMechanism
from support.loopback import PRODUCE, Held, api_versions, reply, request, serving
from support.sasl_client import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    LISTENER,
    METADATA,
    SaslClient,
    authenticate,
    delete,
    save,
)
from support.waiting import turns, until
from unit.kafka.net.sasl_dialogue import SaslDialogue

pytestmark = pytest.mark.usefixtures("either_loop")
GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "sasl"
FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.fixture
def sasl(broker: Broker) -> Iterator[Broker]:
    """A broker that knows alice, whose password is `secret`."""
    save(broker, "alice", b"secret")
    passwords = authenticate(broker)
    yield broker
    passwords.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(
        NoInstruments, "count", lambda _, event, amount=1: counts.update({event: amount})
    )
    return counts


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_clients_are_answered_as_written(
    path: Path, sasl: Broker, pytestconfig: pytest.Config
) -> None:
    written = path.read_text()
    reauthenticate_ms = 10_000 if path.stem == "again" else 0
    passwords = authenticate(sasl, reauthenticate_ms=reauthenticate_ms)
    async with serving(sasl, LISTENER) as (_, connect):
        said = await SaslDialogue(sasl, connect).play(written)
    passwords.close()
    # Not known when pytest is started for the whole tree.
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(said)
    assert said == written


def test_there_are_dialogues() -> None:
    assert len(FILES) == 4


async def test_api_versions_of_an_unknown_version_may_be_asked_again(sasl: Broker) -> None:
    async with serving(sasl, LISTENER) as (_, connect):
        client = SaslClient(await connect())
        for number in (7, 8):
            client.writer.write(request(API_VERSIONS, 99, number, b"what ever"))
            assert (await reply(client.reader))[0] == number
        client.writer.write(api_versions(9))
        assert (await reply(client.reader))[0] == 9
        assert (await client.plain("alice", b"secret")).error_code == 0


async def test_a_failure_is_counted_logged_and_answered_late(
    sasl: Broker, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    delay_s = 0.2
    passwords = authenticate(sasl, failure_delay_s=delay_s)
    loop = asyncio.get_running_loop()
    async with serving(sasl, LISTENER) as (_, connect):
        for _ in range(3):
            client = SaslClient(await connect())
            began_s = loop.time()
            assert (await client.plain("alice", b"wrong")).error_code == 58
            assert loop.time() - began_s >= delay_s
            assert await client.is_ended()
    passwords.close()
    assert counted["failed_authentications"] == 3
    assert counted["authentications"] == 0
    assert counted["malformed_requests"] == 0
    (line,) = [line for line in caplog.messages if "invalid credentials" in line]
    assert line.startswith("closed 127.0.0.1:")
    assert "wrong" not in caplog.text


async def test_success_is_counted_and_names_the_client(
    sasl: Broker, counted: Counter[str], raw: Any
) -> None:
    principals: list[str] = []
    raw(METADATA, lambda context, _: principals.append(context.connection.principal) or [b""])
    async with serving(sasl, LISTENER) as (_, connect):
        client = SaslClient(await connect())
        await client.scram("SCRAM-SHA-512", "alice", b"secret")
        client.send(METADATA, 1, topics=())
        await client.receive_bare()
    assert principals == ["User:alice"]
    assert (counted["authentications"], counted["failed_authentications"]) == (1, 0)


async def test_a_listener_without_sasl_authenticates_nobody(broker: Broker) -> None:
    async with serving(broker) as (_, connect):
        client = SaslClient(await connect())
        assert (await client.handshake("PLAIN")).error_code == 34
        assert (await client.token(b"\0alice\0secret")).error_code == 34
        assert await client.metadata() is not None


async def test_what_is_sent_with_a_failing_authentication_is_not_served(
    sasl: Broker, raw: Any
) -> None:
    produce = Held()
    raw(PRODUCE, produce)
    async with serving(sasl, LISTENER) as (_, connect):
        client = SaslClient(await connect())
        await client.handshake("PLAIN")
        client.send(AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
        client.send_bare(_unanswered_produce())
        assert (await client.answer(AUTHENTICATE, 2)).error_code == 58
        assert await client.is_ended()
    assert produce.bodies == []


async def test_a_produce_behind_an_authentication_is_not_appended_when_its_peer_goes(
    sasl: Broker, raw: Any
) -> None:
    """Produces that want no answer outlive their peer: not those of one that has proven nothing."""
    produce = Held()
    raw(PRODUCE, produce)
    passwords = authenticate(sasl, failure_delay_s=3600)
    async with serving(sasl, LISTENER) as (server, connect):
        client = SaslClient(await connect())
        await client.handshake("PLAIN")
        client.send(AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
        client.send_bare(_unanswered_produce())
        await client.writer.drain()
        (connection,) = server._host.connections
        await until(lambda: bool(connection._waiting))  # type: ignore[attr-defined]
        client.writer.close()
        await until(lambda: server.connection_count == 0)
        await turns()
        assert server.data.used_bytes == 0
    passwords.close()
    assert produce.bodies == []


async def test_a_frame_before_authentication_is_bounded(sasl: Broker) -> None:
    bytes_max = sasl.settings.authentication_bytes_max
    # Else the time limit ends what the bound should.
    sasl.settings = replace(sasl.settings, authentication_timeout_s=3600)
    async with serving(sasl, LISTENER) as (_, connect):
        client = SaslClient(await connect())
        await client.handshake("PLAIN")
        client.writer.write(struct.pack(">i", bytes_max + 1))
        assert await client.is_ended()
        client = SaslClient(await connect())
        await client.plain("alice", b"secret")
        client.writer.write(struct.pack(">i", bytes_max + 1))
        client.writer.write(bytes(bytes_max))
        await turns(20)
        assert not client.reader.at_eof()


async def test_authentication_has_its_time(sasl: Broker, counted: Counter[str]) -> None:
    hours, moments = 3600.0, 0.05
    async with serving(sasl, LISTENER) as (_, connect):
        sasl.settings = replace(sasl.settings, authentication_timeout_s=hours)
        quick = SaslClient(await connect())
        await quick.plain("alice", b"secret")
        sasl.settings = replace(sasl.settings, authentication_timeout_s=moments)
        silent, slow = SaslClient(await connect()), SaslClient(await connect())
        slow.send(HANDSHAKE, 1, mechanism="PLAIN")
        assert await silent.is_ended()
        while await slow.receive_bare() is not None:  # the handshake may be answered before
            pass
        assert await quick.metadata() is not None
    assert counted["ended:unauthenticated"] == 2


async def test_a_deleted_user_s_connections_end(sasl: Broker, counted: Counter[str]) -> None:
    save(sasl, "bob", b"secret")
    async with serving(sasl, LISTENER) as (server, connect):
        plain, scram, other, bob = [SaslClient(await connect()) for _ in range(4)]
        await plain.plain("alice", b"secret")
        await scram.scram("SCRAM-SHA-256", "alice", b"secret")
        await other.scram("SCRAM-SHA-512", "alice", b"secret")
        await bob.plain("bob", b"secret")
        save(sasl, "alice", b"another")  # as in Kafka, a change ends nothing
        server.look()
        for client in (plain, scram, other):
            assert await client.metadata() is not None
        delete(sasl, "alice", ScramMechanism.SHA_256)
        server.look()
        assert await scram.is_ended()
        for client in (plain, other):
            assert await client.metadata() is not None
        delete(sasl, "alice", ScramMechanism.SHA_512)
        server.look()
        assert await plain.is_ended()
        assert await other.is_ended()
        assert await bob.metadata() is not None
    assert counted["ended:revoked"] == 3


async def test_a_mechanism_s_name_cannot_forge_a_line_of_the_log(
    sasl: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="penstock"):
        async with serving(sasl, LISTENER) as (_, connect):
            client = SaslClient(await connect())
            answer = await client.call(HANDSHAKE, 1, mechanism="X\nclosed 10.0.0.1")
            assert answer.error_code == 33
            assert await client.is_ended()
    assert all("\n" not in line for line in caplog.messages)


def _unanswered_produce() -> bytes:
    """A frame of Produce 3 with acks=0."""
    body = struct.pack(">hhii", -1, 0, 1000, 0)
    return struct.pack(">hhih", PRODUCE, 3, 3, 1) + b"c" + body
