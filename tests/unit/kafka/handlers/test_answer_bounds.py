"""For each API and version, the longest answers to the cheapest items: none is longer than what is
reserved for it before its work starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.answer_bounds import BASE_BYTES, bound_of, text_bytes
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.replies import SMALL_ANSWER_BYTES, PiecedReply
from penstock.kafka.wire import schema
from penstock.model.errors import InvalidRequestError
from penstock.model.steps import at_once
from penstock.state.commands import CreateTopic
from penstock.system.turns import Turns
from support.replies import body_of, encoded
from support.slow import slow_unless
from unit.kafka.conftest import NoSink, StandInLog
from unit.kafka.handlers.test_turns_of_requests import CASES, arrays_of, entity, is_everyday

ITEMS = 1_500
"""In a request: a byte too few for each is more than `BASE_BYTES`."""
TOPICS = 60
MEMBERS = 5
UNRESERVED = ("api_versions", "describe_cluster")
"""These are short."""


class Reserving(RequestContext):
    """Notes what is reserved, also where it is too little to wait for."""

    __slots__ = ("reserved",)

    def reserve_answer(self, byte_count: int) -> None:
        self.reserved = byte_count
        super().reserve_answer(byte_count)


def context_of(broker: Any, api: str, version: int) -> Reserving:
    sink: Any = NoSink()
    context = Reserving(
        BY_MODULE[api].key, version, 1, "client", "127.0.0.1", broker, ConnectionState(1, sink)
    )
    context.reserved = 0
    return context


async def lengths(broker: Any, api: str, version: int, body: memoryview) -> tuple[int, int]:
    """Bytes of the answer, and of its bound."""
    context = context_of(broker, api, version)
    handler = BY_MODULE[api].load()
    if BY_MODULE[api].raw:
        reply = handler.serve(context, body)
        if asyncio.isfuture(reply):
            reply = await reply
        if isinstance(reply, PiecedReply):
            return longest_piece(reply), context.reserved
        return len(body_of(reply)), context.reserved
    request = at_once(schema.taken_steps(api, version, body))
    bound = bound_of(context, api, request, len(body))
    try:
        response = await handler.handle(context, request)
    except InvalidRequestError:
        return 0, 0
    return len(await encoded(response)), max(bound, context.reserved)


def longest_piece(reply: PiecedReply) -> int:
    """What such a reply holds at a time, beside what it is made of."""
    lengths = [len(bytes(piece)) for piece, _ in reply.pieces]
    assert sum(lengths) == reply.byte_count
    return max(lengths)


def topic_id_of(number: int) -> bytes:
    """As `entity` asks for it."""
    return (number + 1).to_bytes(16, "big")


async def fill(face: Any) -> None:
    """Topics with configs of their own, groups with members, and offsets with metadata."""
    face.topic_id("flights")  # with an id that is not below
    applied = face.world.order.append(
        [
            CreateTopic(
                name=f"n{number}",
                topic_id=topic_id_of(number),
                partitions=1 + number % 40,
                configs={"retention.ms": str(number), "cleanup.policy": "compact,delete"},
            )
            for number in range(TOPICS)
        ]
    )
    face.world.view.apply(applied.outcome.changes)
    for number in range(MEMBERS):
        await face.member(f"n{number}")
    for group_id in ("n50", "many"):
        await face.commit(
            2,
            7,
            group_id,
            topics=tuple(
                face.part(
                    "offset_commit",
                    2,
                    "OffsetCommitRequestTopic",
                    name=f"n{number}",
                    partitions=tuple(
                        face.part(
                            "offset_commit",
                            2,
                            "OffsetCommitRequestPartition",
                            partition_index=index,
                            committed_offset=1,
                            committed_metadata="ä" * (number % 90),
                        )
                        for index in range(1 + number % 40)
                    ),
                )
                for number in range(TOPICS)
            ),
        )


def asked(api: str, version: int) -> Sequence[Any]:
    """Requests of many cheap items, and those that ask for everything there is."""
    kind = schema._entity_type(api, version, "Request")
    requests = [entity(kind, 0, name, items=ITEMS) for name in arrays_of(kind) or [""]]
    types = schema.request_types(api, version)
    if api == "offset_fetch" and version >= 8:
        group: Any = types.OffsetFetchRequestGroup
        groups = tuple(
            schema.build(group, group_id=name, topics=None, member_id=None, member_epoch=-1)
            for name in ("many", "many", "n50")
        )
        requests.append(schema.build(kind, groups=groups, require_stable=False))
    elif api == "offset_fetch" and version >= 2:
        requests.append(schema.build(kind, group_id="many", topics=None, require_stable=False))
    elif api == "metadata" and version >= 1:
        requests.append(
            schema.build(
                kind,
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )
    elif api == "describe_log_dirs":
        requests.append(schema.build(kind, topics=None))
    elif api == "describe_topic_partitions":
        requests.append(schema.build(kind, topics=(), response_partition_limit=2000, cursor=None))
    elif api == "describe_configs":
        resources = tuple(
            schema.build(
                types.DescribeConfigsResource,
                resource_type=resource_type,
                resource_name=name,
                configuration_keys=None,
            )
            for resource_type, name in [(4, ""), (4, "7"), *((2, f"n{n}") for n in range(TOPICS))]
        )
        for some in (resources, resources[:1], resources[1:2], resources[2:3]):
            requests.append(
                schema.build(
                    kind, resources=some, include_synonyms=True, include_documentation=True
                )
            )
    return requests


@pytest.mark.parametrize("api", slow_unless(is_everyday, sorted({api for api, _ in CASES})))
async def test_no_answer_is_longer_than_its_bound(face: Any, api: str) -> None:
    broker = face.broker
    broker.log = StandInLog()
    broker.turns = Turns(items_max=1 << 30, rows_max=1 << 30)
    await fill(face)
    for version in (version for known, version in CASES if known == api):
        for request in asked(api, version):
            body = memoryview(schema.encode_request(request))
            length, bound = await lengths(broker, api, version, body)
            if api in UNRESERVED:
                assert length < SMALL_ANSWER_BYTES
            else:
                assert length <= max(bound, BASE_BYTES), (version, request)


METADATA = b"m" * 100_000


# Version 4 wants an id, and knows no instances that need none.
@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 6, 7, 8, 9])
async def test_a_leaders_answer_is_reserved_once_the_round_has_ended(
    face: Any, version: int
) -> None:
    context = context_of(face.broker, "join_group", version)
    protocol = face.part(
        "join_group", version, "JoinGroupRequestProtocol", name="range", metadata=METADATA
    )
    request = schema.build(
        schema.request_types("join_group", version).JoinGroupRequest,
        group_id="large",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60),
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=(protocol,),
        reason=None,
    )
    sent = schema.encode_request(request)
    taken = at_once(schema.taken_steps("join_group", version, sent))
    body = await encoded(await BY_MODULE["join_group"].load().handle(context, taken))
    assert SMALL_ANSWER_BYTES < len(METADATA) < len(body) <= context.reserved


@pytest.mark.parametrize("version", range(6))
async def test_a_long_assignment_is_reserved(face: Any, version: int) -> None:
    joined = await face.join(5, "large")
    context = context_of(face.broker, "sync_group", version)
    assignment = face.part(
        "sync_group",
        version,
        "SyncGroupRequestAssignment",
        member_id=joined.member_id,
        assignment=METADATA,
    )
    request = schema.build(
        schema.request_types("sync_group", version).SyncGroupRequest,
        group_id="large",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=(assignment,),
    )
    sent = schema.encode_request(request)
    taken = at_once(schema.taken_steps("sync_group", version, sent))
    body = await encoded(await BY_MODULE["sync_group"].load().handle(context, taken))
    assert len(METADATA) < len(body) <= context.reserved


@pytest.mark.parametrize("text", [None, "", "a" * 300, "ä\u20ac\U0001f600" * 100])
def test_a_text_takes_no_more_than_is_said(text: str | None) -> None:
    assert text_bytes(text) >= 2 + len((text or "").encode())
    assert text_bytes(text) >= 3 + len((text or "").encode()) or text is None
