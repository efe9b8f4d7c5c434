"""Dialogues of clients with a listener of SASL, as text: tests/golden/sasl.

A line that begins with `>` is what a client sends, the indented line after it the answer. alice's
password is `secret`. Words:

| line | what is sent |
| --- | --- |
| `connect` | another connection is opened, and used from here on |
| `versions [vN]` | ApiVersions |
| `handshake MECHANISM [vN]` | SaslHandshake |
| `plain USER PASSWORD [vN]` | SaslAuthenticate with a message of PLAIN; `-` is an empty text |
| `bare USER PASSWORD` | the same without a header, after version 0 of the handshake |
| `scram MECHANISM USER PASSWORD` | the two messages of SCRAM |
| `bytes TEXT` | SaslAuthenticate with these bytes |
| `metadata` | Metadata |
| `pass SECONDS` | nothing: time passes |
| `password USER PASSWORD`, `delete USER` | nothing: a credential is changed, or deleted |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.kafka.errors import ErrorCode
from support.loopback import Client
from support.sasl_client import API_VERSIONS, METADATA, SaslClient, Scram, delete, save

ENDED = "the connection is ended"


class SaslDialogue:
    """One client's calls, played line by line."""

    def __init__(self, broker: Any, connect: Callable[[], Awaitable[Client]]) -> None:
        self._broker = broker
        self._connect = connect
        self._client: SaslClient | None = None

    async def play(self, written: str) -> str:
        """The text with the answers as they are."""
        said: list[str] = []
        for line in written.splitlines():
            if line.startswith("> "):
                said.append(line)
                answer = await self._play(line[2:].split())
                said += [f"  {answer}"] if answer else []
            elif not line.startswith("  "):
                said.append(line)
        return "\n".join(said) + "\n"

    async def _play(self, words: list[str]) -> str:
        version = -1
        if words[-1][0] == "v" and words[-1][1:].isdigit():
            version = int(words.pop()[1:])
        if words[0] == "connect" or self._client is None:
            self._client = SaslClient(await self._connect())
        if words[0] == "connect":
            return ""
        answer: str = await getattr(self, f"_{words[0]}")(self._client, version, *words[1:])
        return answer

    async def _versions(self, client: SaslClient, version: int) -> str:
        named = {"client_software_name": "a-client", "client_software_version": "1"}
        answer = await client.call(API_VERSIONS, max(version, 0), **(named if version > 2 else {}))
        return ENDED if answer is None else f"{_name(answer)}: {len(answer.api_keys) > 20}"

    async def _handshake(self, client: SaslClient, version: int, mechanism: str) -> str:
        answer = await client.handshake(mechanism, 1 if version < 0 else version)
        return ENDED if answer is None else f"{_name(answer)}: {' '.join(answer.mechanisms)}"

    async def _plain(self, client: SaslClient, version: int, user: str, password: str) -> str:
        return _shown(await client.token(_message(user, password), 2 if version < 0 else version))

    async def _bare(self, client: SaslClient, version: int, user: str, password: str) -> str:
        client.send_bare(_message(user, password))
        answer = await client.receive_bare()
        return ENDED if answer is None else repr(answer)

    async def _scram(
        self, client: SaslClient, version: int, mechanism: str, user: str, password: str
    ) -> str:
        scram = Scram(mechanism, user, password.encode())
        first = await client.token(scram.first)
        if first is None or first.error_code:
            return _shown(first)
        return _shown(await client.token(scram.final(first.auth_bytes)))

    async def _bytes(self, client: SaslClient, version: int, text: str) -> str:
        return _shown(await client.token(text.encode()))

    async def _metadata(self, client: SaslClient, version: int) -> str:
        answer = await client.call(METADATA, 1, topics=())
        return ENDED if answer is None else f"{len(answer.brokers)} broker"

    async def _pass(self, client: SaslClient, version: int, seconds: str) -> str:
        self._broker.clock.advance(float(seconds))
        return ""

    async def _password(self, client: SaslClient, version: int, user: str, password: str) -> str:
        save(self._broker, user, password.encode())
        return ""

    async def _delete(self, client: SaslClient, version: int, user: str) -> str:
        delete(self._broker, user)
        return ""


def _message(user: str, password: str) -> bytes:
    return b"\0".join(b"" if one == "-" else one.encode() for one in ("-", user, password))


def _name(answer: Any) -> str:
    return ErrorCode(answer.error_code).name


def _shown(answer: Any) -> str:
    if answer is None:
        return ENDED
    if answer.error_code:
        return f"{_name(answer)}: {answer.error_message}"
    lifetime = getattr(answer, "session_lifetime", None)
    verifier = ", a verifier" if answer.auth_bytes.startswith(b"v=") else ""
    return f"NONE{verifier}" + (f", for {lifetime.total_seconds():g} s" if lifetime else "")
