"""An answer about topics in pieces is the one that is made whole."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.metadata_answers import (
    KnownTopics,
    TopicAnswer,
    TopicsWriter,
    row_bytes,
    slices,
)
from penstock.kafka.replies import PIECE_BYTES
from penstock.model.ids import TopicId, TopicKey
from penstock.model.steps import at_once
from penstock.placement.leaders import Leaders
from penstock.placement.replicas import Replicas
from penstock.state.read.view import Topic

ANSWERS = [
    TopicAnswer(ErrorCode.NONE, "one", b"1" * 16, 1, replicas=1),
    TopicAnswer(ErrorCode.UNKNOWN_TOPIC_ID, None, b"2" * 16, 0),
    TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, "ä" * 200, b"\0" * 16, 0),
    TopicAnswer(ErrorCode.NONE, "large", b"3" * 16, 9_000, replicas=16, in_sync_min=9),
    *(
        TopicAnswer(ErrorCode.NONE, f"t{n}", n.to_bytes(16, "big"), n % 200, 1 + n % 4, 1 + n % 5)
        for n in range(700)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("leaders", [(7,), (7, 8, 9)])
@pytest.mark.parametrize("version", range(14))
def test_pieces_and_length_are_those_of_the_whole(
    broker: Any, version: int, leaders: tuple[int, ...]
) -> None:
    lead(broker, leaders)
    nothing: Any = SimpleNamespace(listener="")
    context = RequestContext(3, version, 1, "test", "127.0.0.1", broker, nothing)
    for answers in (ANSWERS, ANSWERS[:1], []):
        writer = TopicsWriter(context)
        whole = at_once(writer.whole(answers))
        assert at_once(writer.length(answers)) == len(whole)
        pieces = (bytes(piece) for piece, _ in writer.pieces(answers))
        first = next(pieces)
        # Later pieces agree with those before, whoever leads by then.
        lead(broker, (1, 2, 3))
        assert first + b"".join(pieces) == whole
        lead(broker, leaders)


def lead(broker: Any, agents: tuple[int, ...]) -> None:
    near = Leaders(agents)
    broker.nodes._replicas = Replicas(near, {"": near})


@pytest.mark.parametrize("factor", [0, 1, 3, 16])
@pytest.mark.parametrize("least", ["1", "2", "9", "1000000"])
def test_no_version_of_a_row_is_longer_than_its_bound(broker: Any, factor: int, least: str) -> None:
    nothing: Any = SimpleNamespace(listener="")
    topic = Topic(TopicKey(1), TopicId(bytes(16)), "t", 5, {"min.insync.replicas": least}, factor)
    lengths = []
    for version in range(14):
        context = RequestContext(3, version, 1, "test", "127.0.0.1", broker, nothing)
        answer = KnownTopics(context).answer(topic)
        lengths.append(row_bytes(version, answer))
    assert max(lengths) == answer.row_bytes_max


def test_slices_are_all_of_it() -> None:
    data = bytes(range(256)) * 1000
    pieces = [bytes(piece) for piece, _ in slices(data)]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == PIECE_BYTES
