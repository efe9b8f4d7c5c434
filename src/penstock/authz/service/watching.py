"""A stream of an environment's changes, as server-sent events, read from its journal.

Each event is an entry; its id is a token, with which a watcher that was cut off goes on.
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from penstock.authz.service.call import Answer, Call
from penstock.authz.service.directory import Access
from penstock.authz.service.environment import Environment
from penstock.authz.state import entries
from penstock.authz.state.entries import Clear, Delete, Insert, SetPolicy, Write
from penstock.model.errors import InvalidRequestError, OverloadedError
from penstock.replica import tokens
from penstock.replica.snapshot import JournalEntry

WATCHERS_MAX: Final = 200
ENTRIES_MAX: Final = 100
"""Entries that are read at once."""
SILENT_S: Final = 15.0
"""A comment is sent after this time without a change, so that proxies keep the connection."""
CONTENT_TYPE: Final = "text/event-stream"


class Watching:
    """Streams changes. Event loop only.

    Args:
        executor: has the reading of journals.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.watcher_count = 0

    async def watch(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """GET /api/watch: changes after the header Last-Event-ID or `?after=TOKEN`, else from now
        on."""
        token = dict(parse_qsl(call.query)).get("after", "") or call.headers.get("last-event-id")
        position = environment.position
        if token:
            position = tokens.decode(token, environment.log)
            if not position:
                raise InvalidRequestError(
                    "watch", "changes", "the token isn't of this history", "begin without one"
                )
        if self.watcher_count >= WATCHERS_MAX:
            raise OverloadedError("watch", "changes", f"{WATCHERS_MAX} watchers are connected")
        loop = asyncio.get_running_loop()
        # Whether the entries are kept is an answer, not the end of a stream.
        await loop.run_in_executor(self._executor, environment.journal, position, 1)
        stream = self._events(environment, position)
        return Answer(200, b"", (("Cache-Control", "no-store"),), CONTENT_TYPE, stream)

    async def _events(self, environment: Environment, position: int) -> AsyncGenerator[bytes, None]:
        self.watcher_count += 1
        environment.user_count += 1
        loop = asyncio.get_running_loop()
        try:
            yield b": watching\n\n"
            while True:
                found = await loop.run_in_executor(
                    self._executor, environment.journal, position, ENTRIES_MAX
                )
                for entry, idle in found:
                    position = entry.position
                    event = _event(entry, idle, environment.token(position))
                    if event:
                        yield event
                if not found and not await environment.moved(position, SILENT_S):
                    yield b": nothing\n\n"
        finally:
            self.watcher_count -= 1
            environment.user_count -= 1


def _event(entry: JournalEntry, idle: frozenset[int], token: str) -> bytes:
    """Give the event of an entry; empty if it changed nothing."""
    changes: list[dict[str, object]] = []
    for place, command in enumerate(entries.decode(entry.body).commands):
        if place in idle:
            continue
        match command:
            case Write():
                changes += map(_change, command.changes)
            case Clear():
                changes.append({"clear": True})
            case SetPolicy():
                changes.append({"policy": {"filename": command.filename or None}})
            case _:
                pass
    if not changes:
        return b""
    data = msgspec.json.encode(
        {"position": entry.position, "time_ms": entry.time_ms, "changes": changes}
    )
    return b"id: %b\nevent: change\ndata: %b\n\n" % (token.encode(), data)


def _change(change: Insert | Delete) -> dict[str, object]:
    args = [{"type": kind, "id": id_} for kind, id_ in change.arguments]
    name = "insert" if isinstance(change, Insert) else "delete"
    return {name: {"predicate": change.predicate, "args": args}}
