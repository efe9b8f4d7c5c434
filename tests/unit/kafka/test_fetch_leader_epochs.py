"""A fetch by a client that knows another leader epoch is refused before it is given anything."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.handlers import fetch
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire.schema import encode_request
from penstock.model.ids import partition_key
from penstock.state.commands import CommitRuns, RunCommit

FENCED, UNKNOWN, OUT_OF_RANGE = 74, 75, 1
VERSIONS = range(9, BY_MODULE["fetch"].versions_max + 1)
EPOCH, END = 2, 100


@pytest.fixture
def fetched(call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any) -> Any:
    """(error, high watermark) per (leader epoch, offset), each asked of a partition of its own."""
    topic = add_topic("t", 4)
    broker.view.leader_epoch = EPOCH
    runs = [
        RunCommit(
            partition_key=partition_key(topic.topic_key, number),
            position=0,
            batches=[100, END, 0, -1, -1, -1],
        )
        for number in range(4)
    ]
    broker.committer.apply(CommitRuns(runs=runs, wal=1))

    def ask(version: int, *asked: tuple[int, int], session: tuple[int, int] = (0, -1)) -> Any:
        wanted = tuple(
            part_of(
                "fetch",
                version,
                "FetchPartition",
                partition=number,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                log_start_offset=-1,
                partition_max_bytes=1000,
            )
            for number, (epoch, offset) in enumerate(asked)
        )
        named = {"topic": "t"} if version < 13 else {"topic_id": topic_uuid(topic)}
        part = part_of("fetch", version, "FetchTopic", **named, partitions=wanted)
        return request_of(
            "fetch",
            version,
            max_wait=timedelta(),
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=session[0],
            session_epoch=session[1],
            topics=(part,) if asked else (),
            forgotten_topics_data=(),
            **({"replica_id": -1} if version < 15 else {}),
            **({"rack_id": ""} if version >= 11 else {}),
        )

    def run(version: int, *asked: tuple[int, int], **options: Any) -> list[tuple[int, int]]:
        answer = call("fetch", version, ask(version, *asked, **options))
        return answers_of(answer)

    run.ask = ask  # type: ignore[attr-defined]
    return run


def topic_uuid(topic: Any) -> Any:
    from uuid import UUID

    return UUID(bytes=topic.topic_id)


def answers_of(answer: Any) -> list[tuple[int, int]]:
    return [
        (int(one.error_code), int(one.high_watermark))
        for topic in answer.responses
        for one in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_epoch_is_fenced_and_a_later_one_unknown_wherever_the_client_is(
    fetched: Any, version: int
) -> None:
    """At the end, too, and past it: there the client's next question tells it what was cut off."""
    for offset in (0, END, END + 50):
        assert fetched(version, (EPOCH - 1, offset), (EPOCH + 1, offset)) == [
            (FENCED, END),
            (UNKNOWN, END),
        ]
    for epoch in (EPOCH, -1):
        assert fetched(version, (epoch, END)) == [(0, END)]
        assert fetched(version, (epoch, END + 1)) == [(OUT_OF_RANGE, END)]


def test_the_others_of_a_fetch_are_answered(fetched: Any) -> None:
    assert fetched(11, (EPOCH, END), (0, END), (-1, END), (9, END)) == [
        (0, END),
        (FENCED, END),
        (0, END),
        (UNKNOWN, END),
    ]


def test_a_request_that_comes_again_is_refused_again_and_with_the_right_epoch_is_not(
    fetched: Any, broker: Any
) -> None:
    """On one connection, where what repeats isn't parsed anew."""
    connection = ConnectionState(1, Sink())

    def send(*asked: tuple[int, int]) -> Sequence[int]:
        body = memoryview(encode_request(fetched.ask(11, *asked)))
        key = BY_MODULE["fetch"].key
        context = RequestContext(key, 11, 1, "test", "127.0.0.1", broker, connection)
        (reply,) = fetch.serve(context, body)  # type: ignore[misc]
        return [
            int.from_bytes(bytes(reply)[at : at + 2], "big")
            for at in (4 + 2 + 4 + 4 + 2 + 1 + 4 + 4,)
        ]

    assert [send((1, offset)) for offset in (END, END, END + 1)] == [[FENCED]] * 3
    assert [send((2, END)), send((2, END)), send((2, END + 1))] == [[0], [0], [OUT_OF_RANGE]]
    assert send((1, END)) == [FENCED]


class Sink:
    """A connection that takes everything."""

    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return 1 << 20

    def is_asked_more(self) -> bool:
        return False

    def takes_files(self) -> bool:
        return False

    def reserve_answer(self, byte_count: int) -> None:
        pass
