"""For each API and version, long requests of the cheapest items: none holds the event loop.

The work between two turns of the loop is counted in calls of functions, by a callback that has its
turn each time; seconds are `bench/bench_requests.py`'s. A turn's share is a tenth of a server's, so
that requests may be a tenth as long. Produce and Fetch are in `unit.kafka.test_long_requests`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import typing
import uuid
from typing import Any

import pytest

from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import LongAnswer
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.replies import PiecedReply
from penstock.kafka.wire import schema
from penstock.kafka.wire.decode import without_none
from penstock.model.errors import InvalidRequestError
from penstock.state.commands import CreateTopic
from penstock.system.turns import Turns
from support.loop_probe import Probe
from support.slow import slow_unless
from unit.kafka.conftest import NoSink, StandInLog
from unit.kafka.wire.test_decode import EVERY_VERSION, SAMPLES

ITEMS = 2_500
TURN_ITEMS = 100
CALLS_MAX = 25_000
"""Of 250 items that are read or written at a time, or of 100 that a handler looks at."""
WHOLE = ("produce", "fetch")

CASES = [case for case in EVERY_VERSION if case[0] not in WHOLE]


def is_newest(api: str, version: int) -> bool:
    """An older version's reader and writer are made as the newest one's."""
    return version == BY_MODULE[api].versions_max


EVERYDAY = ("create_topics", "describe_groups", "list_offsets", "metadata", "offset_commit")
"""The APIs whose long requests `make check` sends: two of topics, two of groups, one of both."""


def is_everyday(api: str, version: int | None = None) -> bool:
    return api in EVERYDAY and (version is None or is_newest(api, version))


NEWEST = [(api, version) for api, version in CASES if is_newest(api, version)]
"""Handlers get each version as the last; that the readers and writers of the others take steps is
`unit.kafka.wire.test_encode`'s."""


def value(field: Any, kind: Any, number: int) -> Any:
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "string":
        return f"n{number}"
    if kafka_type == "uuid":
        return uuid.UUID(int=number + 1)
    if kafka_type == "int32":
        return number
    if kafka_type in ("int16", "int8"):
        return 2
    return SAMPLES[kafka_type]


def entity(kind: Any, number: int, grown: str, *, items: int = ITEMS) -> Any:
    """An entity whose arrays are empty, but for those called `grown`, and what leads there."""
    values = {}
    for field, inner, nullable, item in fields_of(kind):
        if item is not None:
            count = items if field.name == grown else int(grown in arrays_of(item))
            values[field.name] = tuple(
                entity(item, at, grown, items=items)
                if dataclasses.is_dataclass(item)
                else value(field, item, at)
                for at in range(count)
            )
        elif dataclasses.is_dataclass(inner):
            values[field.name] = None if nullable else entity(inner, number, grown, items=items)
        else:
            values[field.name] = value(field, inner, number)
    return kind(**values)


@functools.cache
def fields_of(kind: Any) -> list[tuple[Any, Any, bool, Any]]:
    """Each field with its type, whether it may be None, and of an array the type of its items."""
    found = []
    for field in dataclasses.fields(kind):
        inner, nullable = without_none(field.type)
        item = None
        if typing.get_origin(inner) is tuple:
            item, _ = without_none(typing.get_args(inner)[0])
        found.append((field, inner, nullable, item))
    return found


@functools.cache
def arrays_of(kind: Any) -> list[str]:
    """Names of all arrays in an entity, nested ones too."""
    if not dataclasses.is_dataclass(kind):
        return []
    names = []
    for field in dataclasses.fields(kind):
        inner, _ = without_none(field.type)
        if typing.get_origin(inner) is tuple:
            names += [field.name, *arrays_of(without_none(typing.get_args(inner)[0])[0])]
    return names


async def answer(broker: Any, api: str, version: int, body: memoryview) -> None:
    """As a connection does it."""
    entry = BY_MODULE[api]
    sink: Any = NoSink()
    context = RequestContext(
        entry.key, version, 1, "client", "127.0.0.1", broker, ConnectionState(1, sink)
    )
    handler = entry.load()
    if entry.raw:
        reply = handler.serve(context, body)
        if asyncio.isfuture(reply):
            reply = await reply
        await take(broker, reply)
        return
    request = await schema.decode_in_turns(broker.turns, api, version, body)
    try:
        response = await handler.handle(context, request)
    except InvalidRequestError:
        return
    if isinstance(response, LongAnswer):
        await take(broker, await response.reply(broker.turns))
        return
    await schema.encode_in_turns(broker.turns, response)


async def take(broker: Any, reply: Any) -> None:
    """Make all pieces of a reply, as `PieceSender` does for a peer that takes them at once."""
    if isinstance(reply, PiecedReply):
        for piece, items in reply.pieces:
            if broker.turns.spend(items, len(bytes(piece))):
                await broker.turns.wait()


@pytest.mark.parametrize(("api", "version"), slow_unless(is_everyday, NEWEST))
async def test_no_request_holds_the_loop(face: Any, api: str, version: int) -> None:
    kind = schema._entity_type(api, version, "Request")
    schema.response_types(api, version)
    broker = face.broker
    broker.log = StandInLog()
    broker.turns = Turns(items_max=TURN_ITEMS, rows_max=50)
    for name in arrays_of(kind) or [""]:
        body = memoryview(schema.encode_request(entity(kind, 0, name)))
        # Compiled readers and writers are there, as after the first requests.
        with Probe() as probe:
            await asyncio.wait_for(answer(broker, api, version, body), 60)
        assert probe.most < CALLS_MAX, (name, probe.most, probe.total, probe.turns)


TOPICS = 12_000
EVERYTHING: list[tuple[str, int, dict[str, Any]]] = [
    ("describe_log_dirs", 4, {"topics": None}),
    (
        "describe_topic_partitions",
        0,
        {"topics": (), "response_partition_limit": 2000, "cursor": None},
    ),
    ("list_config_resources", 1, {"resource_types": ()}),
    ("list_groups", 5, {"states_filter": (), "types_filter": ()}),
]
"""Short requests about all that there is."""


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version", "fields"), EVERYTHING)
async def test_no_answer_about_everything_holds_the_loop(
    face: Any, api: str, version: int, fields: dict[str, Any]
) -> None:
    kind = schema._entity_type(api, version, "Request")
    body = memoryview(schema.encode_request(schema.build(kind, **fields)))
    broker = face.broker
    broker.log = StandInLog()
    applied = face.world.order.append(
        [
            CreateTopic(name=f"n{number}", topic_id=number.to_bytes(16, "big"), partitions=1)
            for number in range(1, TOPICS)
        ]
    )
    face.world.view.apply(applied.outcome.changes)
    await answer(broker, api, version, body)
    broker.turns = Turns(items_max=TURN_ITEMS, rows_max=50)
    with Probe() as probe:
        await asyncio.wait_for(answer(broker, api, version, body), 60)
    assert probe.most < CALLS_MAX, (probe.most, probe.total, probe.turns)


PASSED = [
    ("leave_group", 5, "members"),
    ("offset_fetch", 10, "partition_indexes"),
    ("create_topics", 7, "topics"),
    ("delete_topics", 6, "topics"),
    ("alter_configs", 2, "resources"),
    ("create_partitions", 3, "topics"),
]
"""APIs and arrays that a handler makes a list of, at a call or two for each item."""


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version", "name"), PASSED)
async def test_no_pass_over_all_items_is_made_in_one_turn(
    face: Any, api: str, version: int, name: str
) -> None:
    kind = schema._entity_type(api, version, "Request")
    schema.response_types(api, version)
    body = memoryview(schema.encode_request(entity(kind, 0, name, items=8 * ITEMS)))
    broker = face.broker
    broker.log = StandInLog()
    broker.turns = Turns(items_max=TURN_ITEMS, rows_max=50)
    with Probe() as probe:
        await asyncio.wait_for(answer(broker, api, version, body), 60)
    assert probe.most < CALLS_MAX, (probe.most, probe.total, probe.turns)
