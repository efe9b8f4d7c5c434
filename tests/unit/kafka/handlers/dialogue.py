"""Dialogues of producers with the APIs of transactions, as text: tests/golden/transactions.

A line that begins with `>` is a request, the indented line after it its answer. Words:

| line | what is sent |
| --- | --- |
| `init ID [PRODUCER] [timeout=MS]` | InitProducerId |
| `add ID PRODUCER T-0 ...` | AddPartitionsToTxn |
| `batched ID PRODUCER [verify] T-0 ...` | AddPartitionsToTxn of brokers |
| `group ID PRODUCER GROUP` | AddOffsetsToTxn |
| `offsets ID PRODUCER GROUP T-0=5 ... [member=M:GENERATION]` | TxnOffsetCommit |
| `end ID PRODUCER commit|abort` | EndTxn |
| `produce ID PRODUCER T-0 SEQUENCE` | Produce of one transactional record |
| `committed GROUP T-0` | the group's offset, by OffsetFetch |
| `connect NAME` | another connection is opened, and used from here on |
| `by NAME` | a connection that was opened before is used |
| `config NAME=VALUE` | a cluster-wide config is altered |

A version is given as `v4` at the end of any request. PRODUCER is id/epoch; ids count from the first
one that the server gave out.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.kafka.broker import Broker
from penstock.kafka.transactions import LateRequestError
from penstock.state.commands import AlterClusterConfigs
from support.api_client import ApiClient


class Dialogue:
    """One client's calls, played line by line."""

    def __init__(self, broker: Broker) -> None:
        self.client = ApiClient(broker)
        self.broker = broker
        self.first_id = -1
        self._connections = {"first": self.client.connection}

    async def play(self, written: str) -> str:
        """The text with the answers as they are."""
        said: list[str] = []
        for line in written.splitlines():
            if line.startswith("> "):
                said.append(line)
                answer = await self.answer(line[2:].split())
                said += [f"  {answer}"] if answer else []
            elif not line.startswith("  "):
                said.append(line)
        return "\n".join(said) + "\n"

    async def answer(self, words: list[str]) -> str:
        """The answer to one request."""
        version = -1
        if words[-1][0] == "v" and words[-1][1:].isdigit():
            version = int(words.pop()[1:])
        play = getattr(self, f"_{words[0]}")
        try:
            return str(await play(version, *words[1:]))
        except LateRequestError:
            return "the connection is closed without an answer"

    async def _init(self, version: int, name: str, *words: str) -> str:
        producer, timeout_ms = (-1, -1), 60_000
        for word in words:
            if word.startswith("timeout="):
                timeout_ms = int(word.removeprefix("timeout="))
            else:
                producer = self._producer(word)
        reply = await self.client.call(
            "init_producer_id",
            version,
            transactional_id=name,
            transaction_timeout=timedelta(milliseconds=timeout_ms),
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        return f"{reply.error_code.name} {self._shown(reply)}"

    async def _add(self, version: int, name: str, producer: str, *names: str) -> str:
        producer_id, epoch = self._producer(producer)
        reply = await self.client.call(
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=self._topics(version, names),
        )
        return _listed(reply.results_by_topic_v3_and_below)

    async def _batched(self, version: int, name: str, producer: str, *names: str) -> str:
        producer_id, epoch = self._producer(producer)
        verifies = names[0] == "verify"
        one = self.client.part(
            "add_partitions_to_txn",
            version,
            "AddPartitionsToTxnTransaction",
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verifies,
            topics=self._topics(version, names[verifies:]),
        )
        reply = await self.client.call("add_partitions_to_txn", version, transactions=(one,))
        (result,) = reply.results_by_transaction
        assert result.transactional_id == name
        return f"{reply.error_code.name}: {_listed(result.topic_results)}"

    async def _group(self, version: int, name: str, producer: str, group: str) -> str:
        producer_id, epoch = self._producer(producer)
        reply = await self.client.call(
            "add_offsets_to_txn",
            version,
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        return str(reply.error_code.name)

    async def _offsets(
        self, version: int, name: str, producer: str, group: str, *words: str
    ) -> str:
        producer_id, epoch = self._producer(producer)
        member, generation = "", "-1"
        topics = []
        for word in words:
            if word.startswith("member="):
                member, _, generation = word.removeprefix("member=").partition(":")
                continue
            place, _, offset = word.partition("=")
            topic, _, number = place.rpartition("-")
            partition = self.client.part(
                "txn_offset_commit",
                version,
                "TxnOffsetCommitRequestPartition",
                partition_index=int(number),
                committed_offset=int(offset),
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            topics.append(
                self.client.part(
                    "txn_offset_commit",
                    version,
                    "TxnOffsetCommitRequestTopic",
                    name=topic,
                    partitions=(partition,),
                )
            )
        reply = await self.client.call(
            "txn_offset_commit",
            version,
            transactional_id=name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=int(generation),
            member_id=member,
            group_instance_id=None,
            topics=tuple(topics),
        )
        return " ".join(
            f"{topic.name}-{one.partition_index} {one.error_code.name}"
            for topic in reply.topics
            for one in topic.partitions
        )

    async def _end(self, version: int, name: str, producer: str, outcome: str) -> str:
        producer_id, epoch = self._producer(producer)
        reply = await self.client.call(
            "end_txn",
            version,
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed={"commit": True, "abort": False}[outcome],
        )
        if version < 5:
            return str(reply.error_code.name)
        return f"{reply.error_code.name} {self._shown(reply)}"

    async def _produce(
        self, version: int, name: str, producer: str, place: str, sequence: str
    ) -> str:
        topic, _, number = place.rpartition("-")
        answer = await self.client.produce(
            topic,
            b"value",
            partition=int(number),
            producer=self._producer(producer),
            sequence=int(sequence),
            transactional_id=name,
            version=version,
        )
        return f"{answer.error_code.name} at {answer.base_offset}"

    async def _committed(self, version: int, group: str, place: str) -> str:
        assert version < 0
        topic, _, number = place.rpartition("-")
        asked = self.client.part(
            "offset_fetch", 7, "OffsetFetchRequestTopic", name=topic, partition_indexes=(0,)
        )
        reply = await self.client.call(
            "offset_fetch", 7, group_id=group, topics=(asked,), require_stable=True
        )
        (found,) = reply.topics[0].partitions
        assert found.partition_index == int(number)
        return f"{found.error_code.name} {found.committed_offset}"

    async def _connect(self, version: int, name: str) -> str:
        assert version < 0
        self.client.connect()
        self._connections[name] = self.client.connection
        return ""

    async def _by(self, version: int, name: str) -> str:
        assert version < 0
        self.client.connection = self._connections[name]
        return ""

    async def _config(self, version: int, setting: str) -> str:
        assert version < 0
        name, _, value = setting.partition("=")
        await self.broker.committer.commit([AlterClusterConfigs(set={name: value})])
        return ""

    def _topics(self, version: int, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(
            self.client.part(
                "add_partitions_to_txn",
                version,
                "AddPartitionsToTxnTopic",
                name=topic,
                partitions=(int(number),),
            )
            for topic, _, number in (name.rpartition("-") for name in names)
        )

    def _producer(self, text: str) -> tuple[int, int]:
        number, _, epoch = text.partition("/")
        known = number != "-1"
        return int(number) + (self.first_id if known else 0), int(epoch)

    def _shown(self, reply: Any) -> str:
        if reply.producer_id < 0:
            return f"{reply.producer_id}/{reply.producer_epoch}"
        if self.first_id < 0:
            self.first_id = int(reply.producer_id)
        return f"{reply.producer_id - self.first_id}/{reply.producer_epoch}"


def _listed(topics: Any) -> str:
    return " ".join(
        f"{topic.name}-{one.partition_index} {one.partition_error_code.name}"
        for topic in topics
        for one in topic.results_by_partition
    )
