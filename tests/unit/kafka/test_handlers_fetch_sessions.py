"""Fetch sessions as clients meet them: given, resumed, and not given when all are in use."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.fetch_sessions import EVICTABLE_AFTER_S, FetchSessions

VERSION = 11


@pytest.fixture
def fetch(call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any) -> Any:
    """(error, session id, answered partitions) of a fetch of an empty topic's partitions."""
    add_topic("t", 3)
    broker.log.loads_max = 1

    def run(session_id: int, epoch: int, *partitions: int) -> tuple[int, int, int]:
        wanted = tuple(
            part_of(
                "fetch",
                VERSION,
                "FetchPartition",
                partition=partition,
                current_leader_epoch=-1,
                fetch_offset=0,
                log_start_offset=-1,
                partition_max_bytes=1000,
            )
            for partition in partitions
        )
        topics = (part_of("fetch", VERSION, "FetchTopic", topic="t", partitions=wanted),)
        ask = request_of(
            "fetch",
            VERSION,
            replica_id=-1,
            max_wait=timedelta(),
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics if partitions else (),
            forgotten_topics_data=(),
            rack_id="",
        )
        answer = call("fetch", VERSION, ask)
        count = sum(len(topic.partitions) for topic in answer.responses)
        return answer.error_code, answer.session_id, count

    return run


def test_a_client_past_the_last_session_is_served_without_one(fetch: Any, broker: Any) -> None:
    broker.fetch_sessions = FetchSessions(sessions_max=1)
    error, session_id, count = fetch(0, 0, 0, 1)
    assert (error, count) == (0, 2)
    assert session_id > 0
    for epoch in (1, 2):
        assert fetch(0, 0, 0, 1, 2) == (0, 0, 3)
        assert fetch(session_id, epoch) == (0, session_id, 0)
    broker.clock.advance(EVICTABLE_AFTER_S)
    _, other, count = fetch(0, 0, 2)
    assert other not in (0, session_id)
    assert count == 1
    assert fetch(session_id, 3)[0] == 70
