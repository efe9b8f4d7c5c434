"""The group handlers on a real coordinator and the real order, in virtual time.

Every request and response goes through its bytes and back: requests by the face's own decoder,
responses by kio's reader.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema
from penstock.model.steps import at_once
from support.async_tests import options_of
from support.replies import encoded as encoded_answer
from support.simulated.virtual_loop import VirtualLoop
from unit.groups import fakes
from unit.kafka.conftest import NoSink


class Face:
    """A broker whose handlers are called as the connection calls them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        nothing: Any = None
        self.broker = Broker(
            view=world.view,
            committer=world.committer,
            log=nothing,
            groups=world.groups,
            clock=world.clock,
            random=world.random,
            cluster_id="cluster",
            node_id=7,
            advertised_host="broker.example",
            advertised_port=9092,
            position=lambda: 0,
        )

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send one request of that version; fields that the version has not are left out."""
        entry = BY_MODULE[api]
        sink: Any = NoSink()
        context = RequestContext(
            entry.key, version, 1, "client", "127.0.0.1", self.broker, ConnectionState(1, sink)
        )
        request_type = getattr(schema.request_types(api, version), f"{entry.name}Request")
        request = schema.build(request_type, **fields)
        decoded = at_once(schema.taken_steps(api, version, schema.encode_request(request)))
        encoded = await encoded_answer(await entry.load().handle(context, decoded))
        response_type = getattr(schema.response_types(api, version), f"{entry.name}Response")
        response, size = entity_reader(response_type)(encoded, 0)
        assert size == len(encoded)
        return response

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """A nested entity of a request."""
        return schema.build(getattr(schema.request_types(api, version), kind), **fields)

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic, made if need be, as requests carry it."""
        return uuid.UUID(bytes=self.world.topic(name).topic_id)

    async def join(self, version: int, group_id: str = "g", **changes: Any) -> Any:
        """JoinGroup as a consumer sends it; with a second request where the id comes first."""
        from datetime import timedelta

        fields: dict[str, Any] = {
            "group_id": group_id,
            "session_timeout": timedelta(seconds=10),
            "rebalance_timeout": timedelta(seconds=60),
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": (
                self.part(
                    "join_group",
                    version,
                    "JoinGroupRequestProtocol",
                    name="range",
                    metadata=fakes.subscription("flights"),
                ),
            ),
            "reason": None,
        }
        fields |= changes
        reply = await self.call("join_group", version, **fields)
        if reply.error_code.name == "member_id_required":
            fields["member_id"] = reply.member_id
            reply = await self.call("join_group", version, **fields)
        return reply

    async def sync(self, version: int, joined: Any, group_id: str = "g", **changes: Any) -> Any:
        """SyncGroup of a leader that keeps everything."""
        fields: dict[str, Any] = {
            "group_id": group_id,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": (
                self.part(
                    "sync_group",
                    version,
                    "SyncGroupRequestAssignment",
                    member_id=joined.member_id,
                    assignment=b"all",
                ),
            ),
        }
        return await self.call("sync_group", version, **(fields | changes))

    async def member(self, group_id: str = "g", **changes: Any) -> Any:
        """The only member of a stable group; its join's answer."""
        joined = await self.join(5, group_id, **changes)
        synced = await self.sync(
            3, joined, group_id, group_instance_id=changes.get("group_instance_id")
        )
        assert synced.error_code.value == 0
        return joined

    async def commit(self, version: int, offset: int, group_id: str = "g", **changes: Any) -> Any:
        """OffsetCommit of partition 0 of flights, by a simple consumer unless told otherwise."""
        topic_id = self.topic_id("flights")
        partition = self.part(
            "offset_commit",
            version,
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata="note",
        )
        fields: dict[str, Any] = {
            "group_id": group_id,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": (
                self.part(
                    "offset_commit",
                    version,
                    "OffsetCommitRequestTopic",
                    name="flights",
                    topic_id=topic_id,
                    partitions=(partition,),
                ),
            ),
        }
        return await self.call("offset_commit", version, **(fields | changes))


@pytest.fixture
async def face(
    virtual_loop: VirtualLoop, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Face]:
    """A fresh broker in virtual time; `@pytest.mark.options(settings=...)` are its groups'."""
    world = fakes.world(tmp_path, options_of(request).get("settings", fakes.QUICK))
    yield Face(world)
    await world.close()
