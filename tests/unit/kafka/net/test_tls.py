"""Listeners of TLS on loopback sockets: who is let in, who is named, and what is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.app.listening import name_client
from penstock.kafka.broker import Broker
from penstock.kafka.instruments import NoInstruments
from penstock.kafka.net import tls_acceptor
from penstock.security.listener import Listener, Protocol
from penstock.security.tls.contexts import TlsContexts, TlsSettings
from penstock.security.tls.principal_rules import parse_rules
from support.certificates import Authority
from support.loopback import METADATA, PRODUCE, Client, api_versions, reply, request, serving
from support.waiting import until

pytestmark = pytest.mark.usefixtures("either_loop")
LISTENER = Listener("SSL", Protocol.SSL, "127.0.0.1", 9093)
RULES = partial(name_client, parse_rules("RULE:^CN=([^,]*),O=Example$/$1/L"))
Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(
        NoInstruments, "count", lambda _, event, amount=1: counts.update({event: amount})
    )
    return counts


def contexts(authority: Authority, **changes: Any) -> TlsContexts:
    fields: dict[str, Any] = {
        "certificate": authority.sign("server"),
        "ca": authority.ca,
        "client_auth": "required",
    }
    return TlsContexts(TlsSettings(**(fields | changes)))


def of_client(authority: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    """What a client shows, and whom it trusts."""
    context = ssl.create_default_context(cafile=authority.ca)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


@contextlib.asynccontextmanager
async def encrypted(connect: Connect, context: ssl.SSLContext) -> AsyncIterator[Client]:
    """A client's connection by TLS."""
    reader, writer = await connect()
    await writer.start_tls(context, server_hostname="localhost")
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def is_served(connect: Connect, context: ssl.SSLContext) -> bool:
    """Whether a client is answered."""
    try:
        async with encrypted(connect, context) as (reader, writer):
            writer.write(api_versions(1))
            return (await reply(reader))[0] == 1
    except (OSError, asyncio.IncompleteReadError):  # of TLS 1.3, after the client's handshake
        return False


async def test_a_certificate_names_its_client(
    broker: Broker, authority: Authority, raw: Any
) -> None:
    principals: list[str] = []
    raw(METADATA, lambda context, _: principals.append(context.connection.principal) or [b""])
    held = contexts(authority)
    async with serving(broker, LISTENER, tls=lambda: held.current, name_client=RULES) as (
        _,
        connect,
    ):
        for user in ("ALICE", "bob"):
            shown = of_client(authority, authority.sign(user))
            async with encrypted(connect, shown) as (reader, writer):
                writer.write(request(METADATA, 1, 1, b"\0\0\0\0"))
                await reply(reader)
    assert principals == ["User:alice", "User:bob"]


async def test_a_certificate_that_no_rule_names_is_refused(
    broker: Broker, authority: Authority, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    held = contexts(authority)
    async with serving(broker, LISTENER, tls=lambda: held.current, name_client=RULES) as (
        _,
        connect,
    ):
        stranger = authority.sign("alice", organization="Elsewhere")
        assert not await is_served(connect, of_client(authority, stranger))
    assert counted["failed_authentications"] == 1
    assert "'CN=alice,O=Elsewhere'" in caplog.text


async def test_certificates_of_others_and_old_ones_are_refused(
    broker: Broker,
    authority: Authority,
    counted: Counter[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = Authority(tmp_path_factory.mktemp("other"))
    held = contexts(authority)
    async with serving(broker, LISTENER, tls=lambda: held.current, name_client=RULES) as (
        server,
        connect,
    ):
        assert await is_served(connect, of_client(authority, authority.sign("alice")))
        for shown in (other.sign("alice"), authority.sign("bob", days=-1), None):
            assert not await is_served(connect, of_client(authority, shown))
        # A client that trusts another authority doesn't speak to this server.
        assert not await is_served(connect, of_client(other, authority.sign("alice")))
        await until(lambda: counted["failed_tls_handshakes"] == 4)
        assert server.connection_count == 0
    assert counted["authentications"] == 0
    (line,) = [line for line in caplog.messages if "no handshake of TLS" in line]
    assert "closed 127.0.0.1" in line


async def test_a_client_without_a_certificate_is_anonymous_where_it_may_be(
    broker: Broker, authority: Authority, raw: Any
) -> None:
    principals: list[str] = []
    raw(METADATA, lambda context, _: principals.append(context.connection.principal) or [b""])
    held = contexts(authority, client_auth="requested")
    async with (
        serving(broker, LISTENER, tls=lambda: held.current, name_client=RULES) as (_, connect),
        encrypted(connect, of_client(authority)) as (reader, writer),
    ):
        writer.write(request(METADATA, 1, 1, b"\0\0\0\0"))
        await reply(reader)
    assert principals == ["User:ANONYMOUS"]


async def test_the_oldest_version_is_a_setting(broker: Broker, authority: Authority) -> None:
    held = contexts(authority, ca=None, client_auth="none", version_min="tlsv1.3")
    old = of_client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(broker, LISTENER, tls=lambda: held.current) as (_, connect):
        assert not await is_served(connect, old)
        assert await is_served(connect, of_client(authority))
        held = contexts(authority, ca=None, client_auth="none")
        assert await is_served(connect, old)


async def test_plain_bytes_are_no_handshake(
    broker: Broker, authority: Authority, counted: Counter[str], raw: Any
) -> None:
    seen: list[bytes] = []
    raw(PRODUCE, lambda _, body: seen.append(bytes(body)) or [b""])
    held = contexts(authority)
    async with serving(broker, LISTENER, tls=lambda: held.current) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, b"plain"))
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
            assert answer[:1] in (b"", b"\x15")  # an alert of TLS at most
        await until(lambda: counted["failed_tls_handshakes"] == 1)
    assert seen == []


async def test_a_handshake_is_no_request(
    broker: Broker, authority: Authority, counted: Counter[str]
) -> None:
    async with serving(broker) as (server, connect):
        assert not await is_served(connect, of_client(authority))
        await until(lambda: server.connection_count == 0)
    assert counted["malformed_requests"] == 1


async def test_a_handshake_has_its_time(
    broker: Broker, authority: Authority, counted: Counter[str]
) -> None:
    broker.settings = replace(broker.settings, authentication_timeout_s=0.05)
    held = contexts(authority)
    async with serving(broker, LISTENER, tls=lambda: held.current) as (_, connect):
        reader, _writer = await connect()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await until(lambda: counted["failed_tls_handshakes"] == 1)


async def test_handshakes_are_bounded_and_make_room(
    broker: Broker,
    authority: Authority,
    counted: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKES_MAX", 2)
    broker.settings = replace(broker.settings, authentication_timeout_s=3600)
    held = contexts(authority, ca=None, client_auth="none")
    async with serving(broker, LISTENER, tls=lambda: held.current) as (server, connect):
        oldest, _ = await connect()
        await connect()
        (acceptor,) = server._listening
        await until(lambda: len(acceptor._handshakes) == 2)  # type: ignore[union-attr]
        assert await is_served(connect, of_client(authority))
        with contextlib.suppress(ConnectionResetError):
            assert await oldest.read() == b""
        assert counted["refused:tls_handshakes"] == 1


async def test_a_new_certificate_is_for_new_connections(
    broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    held = contexts(authority, ca=None, client_auth="none")
    async with (
        serving(broker, LISTENER, tls=lambda: held.current) as (_, connect),
        encrypted(connect, of_client(authority)) as (reader, writer),
    ):
        before = _serial(writer)
        authority.sign("server")
        held.look()
        async with encrypted(connect, of_client(authority)) as (_, newer):
            assert (after := _serial(newer)) != before
        (tmp_path / "server.pem").write_text("half a file")
        held.look()
        async with encrypted(connect, of_client(authority)) as (_, same):
            assert _serial(same) == after
        writer.write(api_versions(1))
        assert (await reply(reader))[0] == 1
    assert held.loaded_count == 2


async def test_a_long_reply_comes_whole_and_waits_where_it_is_counted(
    broker: Broker, authority: Authority, raw: Any
) -> None:
    body = bytes(range(256)) * (32 << 10)
    raw(METADATA, lambda _, __: [body[:100], memoryview(body)[100:]])
    held = contexts(authority, ca=None, client_auth="none")
    async with (
        serving(broker, LISTENER, tls=lambda: held.current) as (server, connect),
        encrypted(connect, of_client(authority)) as (reader, writer),
    ):
        for number in (1, 2):
            writer.write(request(METADATA, 1, number, b"\0\0\0\0"))
        (connection,) = await _connections(server)
        await until(lambda: connection._writer.is_held_up)
        assert connection._transport.get_write_buffer_size() < 1 << 20
        assert connection.unsent_bytes() > len(body) // 2
        for number in (1, 2):
            assert await reply(reader) == (number, body)


async def _connections(server: Any) -> list[Any]:
    await until(lambda: server.connection_count == 1)
    return list(server._host.connections)


def _serial(writer: asyncio.StreamWriter) -> str:
    return str(writer.get_extra_info("peercert")["serialNumber"])
