"""A JoinGroup that waits, since the group's first member doesn't join again."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from support.connection import Connection

REBALANCE_S = 60
ANSWER_S = 30.0


class WaitingJoin:
    """Two members of one group at an agent, the second of which waits for the first. Ends with
    `stack`."""

    def __init__(self, address: str, group_id: str, stack: ExitStack) -> None:
        self._address = parse_address(address, setting="agent")
        self._group_id = group_id
        self._stack = stack
        assert self._join() == 0
        pool = ThreadPoolExecutor(1)
        stack.callback(pool.shutdown)
        self._second: Future[int] = pool.submit(self._join)

    def error_code(self) -> int:
        """Wait until the second member is answered."""
        return self._second.result()

    def _join(self) -> int:
        connection = Connection(self._address, timeout_s=20)
        self._stack.callback(connection.close)
        member_id = ""
        while True:
            joined = connection.request(
                "join_group",
                partial(self._request, member_id),
                wait_s=ANSWER_S,
            )
            if not member_id and joined.member_id:
                member_id = joined.member_id  # MEMBER_ID_REQUIRED, as every client is told first
                continue
            return int(joined.error_code)

    def _request(self, member_id: str, types: Any) -> Any:
        return build(
            types.JoinGroupRequest,
            group_id=self._group_id,
            session_timeout=timedelta(seconds=REBALANCE_S),
            rebalance_timeout=timedelta(seconds=REBALANCE_S),
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=(build(types.JoinGroupRequestProtocol, name="range", metadata=b"m"),),
            reason=None,
        )
