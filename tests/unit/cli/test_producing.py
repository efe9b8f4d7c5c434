"""What the producer of `penstock produce` does when a partition's leader is another one."""

from typing import Any

import pytest

from penstock.cli.client import producing
from penstock.cli.client.cluster import PartitionInfo, TopicInfo
from penstock.cli.client.producing import NewRecord, Producer
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import RetryableError


class Nodes:
    """A cluster of two nodes that hands its one partition from node 1 to node 2."""

    def __init__(self, first_answer: ErrorCode | RetryableError) -> None:
        self.first_answer = first_answer
        self.leader = 1
        self.sent: list[int] = []
        self._asked = 0

    def topic(self) -> TopicInfo:
        row = PartitionInfo(partition=0, leader=self.leader, replicas=(self.leader,))
        return TopicInfo(name="t", topic_id="", is_internal=False, partitions=(row,))

    def metadata(self, names: list[str]) -> Any:
        assert names == ["t"]
        topic = self.topic()
        return type("Info", (), {"topics": {"t": topic}})

    def any(self) -> Any:
        answer = {"error_code": 0, "producer_id": 7, "producer_epoch": 0}
        return type("Any", (), {"request": lambda *_: type("Answer", (), answer)})()

    def node(self, node_id: int) -> Any:
        self._asked = node_id
        return self

    def exchange(self, api: str, version: int, body: bytes) -> memoryview:
        assert (api, version) == ("produce", producing.VERSION)
        assert body
        self.sent.append(self._asked)
        code = ErrorCode.NONE
        if self._asked == 1:
            self.leader = 2
            if isinstance(self.first_answer, RetryableError):
                raise self.first_answer
            code = self.first_answer
        row = producing._PARTITION_ANSWER.pack(0, code, 0, -1, 0)
        return memoryview(b"\0\0\0\1" + producing._text("t") + b"\0\0\0\1" + row)


@pytest.mark.parametrize(
    "first_answer",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, RetryableError("connect", "node 1", "refused")],
    ids=["handed over", "away"],
)
def test_a_batch_is_sent_to_the_node_that_leads_by_then(
    first_answer: ErrorCode | RetryableError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "RETRY_PAUSE_S", 0.0)
    nodes = Nodes(first_answer)
    client: Any = nodes
    producer = Producer(client, nodes.topic(), codec="none", batch_bytes=1 << 20, deadline_s=1.0)
    for _ in range(2):
        producer.add(NewRecord(key=None, value=b"v", timestamp=1))
        producer.flush()
    assert producer.sent_count == 2
    assert nodes.sent == [1, 2, 2]
