"""A member of a classic consumer group: join, sync, heartbeat, commit, leave.

Synchronous: `keep` is called between fetches and does what is due. Its session outlives the
pauses between the calls as long as those are short against SESSION_S; where one is not, the next
call finds the group gone on, and the member joins it again.
Source: the classic rebalance protocol of Kafka; KIP-394 (member ids are given before joining).
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from penstock.cli.client.assignment import (
    RANGE,
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.cli.client.cluster import Client
from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import RefusedError, check
from penstock.cli.client.groups import CONSUMER_PROTOCOL, NO_GENERATION, commit_offsets
from penstock.cli.client.offsets import TopicPartition
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.model.errors import RetryableError

SESSION_S: Final = 30.0
REBALANCE_S: Final = 60.0
HEARTBEAT_S: Final = 3.0
_JOIN_S: Final = 2 * REBALANCE_S
"""How long an answer may take that waits for other members, whose own limits may be longer."""
_JOINS_MAX: Final = 100

_REJOIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class Member:
    """One member, with a connection of its own to the coordinator, made when it is needed."""

    def __init__(self, client: Client, group_id: str, topics: Sequence[str]) -> None:
        self._client = client
        self._connection: Connection | None = None
        self.group_id = group_id
        self._topics = list(topics)
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assigned: list[TopicPartition] = []
        self._beaten_s = 0.0

    @property
    def connection(self) -> Connection:
        """The connection to the coordinator, looked up again if the last one was closed."""
        if self._connection is None or self._connection.closed:
            self._connection = self._client.own_coordinator(self.group_id)
        return self._connection

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()

    def join(self) -> list[TopicPartition]:
        """Join or rejoin, and wait for an assignment.

        Raises:
            RefusedError: the group doesn't want this member, for example since its protocol
                differs.
        """
        for _ in range(_JOINS_MAX):
            joined = self._join_once()
            if joined is None:
                continue
            answer = self._sync(joined)
            if answer.error_code in _REJOIN:
                self._forget(answer.error_code)
                continue
            check("join group", self.group_id, answer.error_code)
            self.assigned = decode_assignment(answer.assignment) if answer.assignment else []
            self._beaten_s = time.monotonic()
            return self.assigned
        raise RetryableError("join group", self.group_id, f"no agreement in {_JOINS_MAX} rounds")

    def keep(self) -> bool:
        """Send a heartbeat if one is due.

        Returns:
            False when the group rebalances: commit what was read, then join again.
        """
        if time.monotonic() - self._beaten_s < HEARTBEAT_S:
            return True
        response = self.connection.request(
            "heartbeat",
            lambda types: build(
                types.HeartbeatRequest,
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            ),
        )
        self._beaten_s = time.monotonic()
        if response.error_code in _REJOIN:
            self._forget(response.error_code)
            return False
        check("heartbeat to group", self.group_id, response.error_code)
        return True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit what was read.

        Returns:
            False when it can't be committed any more, since the group has gone on without this
            member: join again.
        """
        if not offsets:
            return True
        if self.generation == NO_GENERATION:
            return False
        try:
            commit_offsets(
                self.connection,
                self.group_id,
                offsets,
                generation=self.generation,
                member_id=self.member_id,
            )
        except RefusedError as error:
            if error.code not in _REJOIN:
                raise
            self._forget(error.code)
            return False
        return True

    def leave(self) -> None:
        """Leave, so that others need not wait for the session's end."""
        if not self.member_id:
            return
        self.connection.request(
            "leave_group",
            lambda types: build(
                types.LeaveGroupRequest,
                group_id=self.group_id,
                members=(
                    build(
                        types.MemberIdentity,
                        member_id=self.member_id,
                        group_instance_id=None,
                        reason="the command ends",
                    ),
                ),
            ),
        )
        self.member_id = ""

    def _join_once(self) -> Any:
        """One JoinGroup: the answer, or None if another one is to be sent."""
        response = self.connection.request("join_group", self._join_request, wait_s=_JOIN_S)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return None
        if response.error_code in _REJOIN:
            self._forget(response.error_code)
            return None
        check("join group", self.group_id, response.error_code)
        self.member_id = response.member_id
        self.generation = response.generation_id
        return response

    def _join_request(self, types: Any) -> Any:
        return build(
            types.JoinGroupRequest,
            group_id=self.group_id,
            session_timeout=timedelta(seconds=SESSION_S),
            rebalance_timeout=timedelta(seconds=REBALANCE_S),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=(
                build(
                    types.JoinGroupRequestProtocol,
                    name=RANGE,
                    metadata=encode_subscription(self._topics),
                ),
            ),
            reason=None,
        )

    def _sync(self, joined: Any) -> Any:
        assignments = self._assign(joined) if joined.leader == self.member_id else {}
        return self.connection.request(
            "sync_group",
            lambda types: build(
                types.SyncGroupRequest,
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=joined.protocol_name,
                assignments=tuple(
                    build(
                        types.SyncGroupRequestAssignment,
                        member_id=member_id,
                        assignment=encode_assignment(partitions),
                    )
                    for member_id, partitions in assignments.items()
                ),
            ),
            wait_s=_JOIN_S,
        )

    def _assign(self, joined: Any) -> dict[str, list[TopicPartition]]:
        subscriptions = {
            member.member_id: decode_subscription(member.metadata) for member in joined.members
        }
        names = sorted({name for names in subscriptions.values() for name in names})
        topics = self._client.metadata(names).topics
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        return assign_ranges(subscriptions, counts)

    def _forget(self, code: int) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return  # a member of the old generation until it joins the new one
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.generation = NO_GENERATION
