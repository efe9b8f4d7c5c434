"""Fetches that one commit wakes share answers, and each gets the one that it would get alone."""

import asyncio
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.handlers import fetch
from penstock.kafka.replies import LateReply
from penstock.log.fetch.regions import FileRegion
from support.examples import examples
from support.log_rig import Rig, run_rig

PARTITIONS = 2


def body_of(
    version: int,
    offsets: dict[int, int],
    *,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
    isolation_level: int = 0,
    topic: bytes = b"t",
) -> bytes:
    """A Fetch request of version 4 or 11, without a session."""
    body = struct.pack(">iiiib", -1, 600_000, bytes_min, bytes_max, isolation_level)
    if version >= 7:
        body += struct.pack(">ii", 0, -1)
    body += struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        if version >= 9:
            body += struct.pack(">iiqqi", partition, -1, offset, -1, partition_bytes_max)
        else:
            body += struct.pack(">iqi", partition, offset, partition_bytes_max)
    if version >= 7:
        body += struct.pack(">i", 0)
    return body + (b"\0\0" if version >= 11 else b"")


class Sink:
    """A connection with so much room for replies."""

    def __init__(self, room_bytes: int, *, files: bool) -> None:
        self.room_bytes = room_bytes
        self.files = files

    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return self.room_bytes

    def is_asked_more(self) -> bool:
        return False

    def takes_files(self) -> bool:
        return self.files

    def reserve_answer(self, byte_count: int) -> None:
        pass


def ask(broker: Broker, version: int, body: bytes, sink: Sink) -> Any:
    context = RequestContext(1, version, 1, "c", "h", broker, ConnectionState(1, sink))
    return fetch.serve(context, memoryview(body))


def joined(reply: Any) -> bytes:
    return b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRegion) else part
        for part in reply
    )


FIELDS: dict[str, tuple[Any, ...]] = {
    "version": (4, 11),
    "partitions": ([0], [0], [0, 1], [1, 0]),
    "behind": (0, 1),
    # One batch of those that are there already isn't enough for the second.
    "bytes_min": (1, 700, 700, 4000),
    "bytes_max": (1 << 20, 1 << 20, 600),
    "partition_bytes_max": (1 << 20, 1 << 20, 600),
    "isolation_level": (0, 1),
    "room_bytes": (2 << 20, 1 << 20, 600),
    "files": (False, True),
}
REQUEST = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in FIELDS.items()})
CHANGES = st.lists(
    st.sampled_from(list(FIELDS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(FIELDS[name]))
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=examples(0.5))
@given(
    st.lists(st.tuples(REQUEST, CHANGES), min_size=1, max_size=5),
    st.sampled_from((0, 400, 3000, 5000)),
)
def test_whoever_is_woken_gets_what_it_would_get_alone(
    drawn: list[tuple[dict[str, Any], list[tuple[str, Any]]]], size: int
) -> None:
    """Fetches of which many are alike but for one thing wait; then something is written."""

    async def test(rig: Rig) -> None:
        keys = await rig.topic("t", PARTITIONS)
        for key in keys:
            for _ in range(3):
                await rig.append(key, bytes(300))
        broker = rig.agent.broker
        waiting: list[tuple[Any, int, bytes, Sink]] = []
        requests = [request for request, _ in drawn]
        requests += [
            request | {name: value} for request, changes in drawn for name, value in changes
        ]
        for wanted in map(dict, requests):
            version, behind = wanted.pop("version"), wanted.pop("behind")
            sink = Sink(wanted.pop("room_bytes"), files=wanted.pop("files"))
            partitions = wanted.pop("partitions")
            body = body_of(version, dict.fromkeys(partitions, 3 - behind), **wanted)
            waiting.append((ask(broker, version, body, sink), version, body, sink))
        await rig.append(keys[0], bytes(size))
        await asyncio.sleep(0.001)
        for reply, version, body, sink in waiting:
            if not isinstance(reply, LateReply):
                continue
            alone = ask(broker, version, body, sink)
            if reply.done():
                assert joined(reply.result()) == joined(alone)
            else:
                assert isinstance(alone, LateReply)
                alone.cancel()
                reply.cancel()
        await asyncio.sleep(0)
        assert not rig.log.waiters.shared
        assert len(rig.log.waiters) == 0

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test)


async def test_equal_fetches_get_one_answer(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    broker = rig.agent.broker
    takers: list[Any] = []
    for version in (4, 11):
        for _ in range(20):
            sink = Sink(2 << 20, files=False)
            ask(broker, version, body_of(version, {0: 0}), sink).taker = takers.append
    await rig.append(key, b"x")
    while len(takers) < 40:
        await asyncio.sleep(0)
    assert len({id(reply[0]) for reply in takers}) == 2


@pytest.mark.parametrize("limit", ["bytes_max", "partition_bytes_max", "room"])
async def test_what_others_get_is_not_given_beyond_a_limit(rig: Rig, limit: str) -> None:
    """What is new doesn't fit any more, and without it there is too little still."""
    (key,) = await rig.topic("t")
    await rig.append(key, bytes(300))
    broker = rig.agent.broker
    (length,) = struct.unpack_from(
        ">i", joined(ask(broker, 4, body_of(4, {0: 0}), Sink(2 << 20, files=False))), 41
    )
    assert 300 < length < 400
    limits = {} if limit == "room" else {limit: length + 10}
    room = length + 10 if limit == "room" else 2 << 20
    few = body_of(4, {0: 0}, bytes_min=length + 1, **limits)
    limited = [ask(broker, 4, few, Sink(room, files=False)) for _ in range(20)]
    all_ = body_of(4, {0: 0}, bytes_min=length + 1)
    unlimited = [ask(broker, 4, all_, Sink(2 << 20, files=False)) for _ in range(20)]
    await rig.append(key, b"")
    await asyncio.sleep(0.001)
    assert all(reply.done() for reply in unlimited)
    assert not any(reply.done() for reply in limited)
    for reply in limited:
        reply.cancel()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fetch_that_nobody_waits_for_any_more_is_not_answered(rig: Rig, when: str) -> None:
    (key,) = await rig.topic("t")
    broker = rig.agent.broker
    reply = ask(broker, 4, body_of(4, {0: 0}), Sink(1 << 20, files=False))
    taken: list[Any] = []
    reply.taker = taken.append
    if when == "before":
        reply.cancel()
    await rig.append(key, b"x")
    await asyncio.sleep(0.001)
    reply.cancel()
    await asyncio.sleep(0)
    assert len(taken) == (when == "after")
    assert len(rig.log.waiters) == 0
