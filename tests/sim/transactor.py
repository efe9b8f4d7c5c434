"""Transactional producers of the simulated cluster, of both protocols, and their topic.

A producer does what client libraries do: it sends what was not answered again, by another
connection, and begins again with its transactional id after an error that it can't explain. Some of
its requests come late, by a connection that was opened long before: those reach no later
transaction (KAFKA-17754).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire import schema
from penstock.records.batch import TRANSACTIONAL
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from sim.actors import Actor
from sim.chance import Chance
from sim.committed import PARTITIONS, TOPIC, Fact, Outcome
from sim.committed_reader import CommittedReader
from sim.connections import BrokenError, Connection
from sim.history import Place
from sim.wire import Client

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

TIMEOUT_MS = 3_000
RETRIED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class GivenUpError(Exception):
    """The producer can't go on with this transaction: it begins again."""


class Transactor(Actor):
    """One transactional id. `is_v2`: of protocol V2 (KIP-890)."""

    def __init__(self, world: World, name: str, count: int, *, is_v2: bool) -> None:
        super().__init__(world, name)
        self._left = count
        self._is_v2 = is_v2
        self._number = 0
        self._sent = 0
        self._producer = (-1, -1)
        self._offset = -1
        """The last that is known to be committed."""
        self._sequences: dict[Place, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Transactions, until all are ended."""
        await self._begin_anew()
        while self._left and not self.world.stopping:
            self._left -= 1
            self._number += 1
            fact = self.world.transactions.begun(self.name, self._number)
            try:
                await self._transact(fact)
            except GivenUpError as error:
                self.history.count(f"transaction given up: {error}")
                if fact.outcome is Outcome.OPEN:
                    self.world.transactions.ended(fact, Outcome.ABORTED)
                await self._begin_anew()
            await self.pause(0, self.world.think_s)
        for task in self._tasks:
            task.cancel()

    async def _transact(self, fact: Fact) -> None:
        chance = self.chance
        late = self._open_connection() if chance.happens(0.3) else None
        places = chance.shuffled([(TOPIC, number) for number in range(PARTITIONS)])
        for place in places[: 1 + chance.below(PARTITIONS)]:
            if not self._is_v2:
                await self._add_partition(place)
            for _ in range(1 + chance.below(2)):
                await self._produce(fact, place)
        if chance.happens(0.5):
            fact.offset = self._number
            await self._commit_offset(fact.offset)
        if chance.happens(0.1):
            # Its process dies, and the next one takes its place.
            raise GivenUpError("its process dies")
        if chance.happens(0.05):
            await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        commits = chance.happens(0.7)
        producer = self._producer
        if commits:
            fact.outcome = Outcome.IN_DOUBT
        else:
            self.world.transactions.ended(fact, Outcome.ABORTED)
        try:
            await self._end(commits=commits)
        except GivenUpError:
            # What was done already would have been answered again: its time-out came first.
            if commits:
                self.world.transactions.ended(fact, Outcome.ABORTED)
            raise
        if commits:
            self.world.transactions.ended(fact, Outcome.COMMITTED)
            self._offset = max(self._offset, fact.offset)
        if chance.happens(0.4):
            await self._look_at_offset()
        if late is not None:
            self._later(self._end_late(late, producer, commits=not commits))

    # -- requests --------------------------------------------------------------------------------

    async def _begin_anew(self) -> None:
        answer = await self._ask(
            "init_producer_id",
            4,
            lambda types: schema.build(
                types.InitProducerIdRequest,
                transactional_id=self.name,
                transaction_timeout=timedelta(milliseconds=TIMEOUT_MS),
                producer_id=-1,
                producer_epoch=-1,
            ),
            lambda answer: answer.error_code,
        )
        self._producer = int(answer.producer_id), int(answer.producer_epoch)
        self._sequences.clear()

    async def _add_partition(self, place: Place) -> None:
        await self._ask(
            "add_partitions_to_txn",
            3,
            lambda types: schema.build(
                types.AddPartitionsToTxnRequest,
                **self._named("v3_and_below_"),
                v3_and_below_topics=(
                    schema.build(
                        types.AddPartitionsToTxnTopic, name=place[0], partitions=(place[1],)
                    ),
                ),
            ),
            lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )

    async def _produce(self, fact: Fact, place: Place) -> None:
        values = []
        for _ in range(1 + self.chance.below(2)):
            values.append(f"{self.name}/{self._number}/{self._sent}".encode())
            self._sent += 1
        fact.in_doubt.update(values)
        now_ms = self.world.clock.now_ms()
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            [
                Record(offset_delta=at, timestamp=now_ms, key=None, value=value, headers=())
                for at, value in enumerate(values)
            ],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        await self._ask(
            "produce",
            12 if self._is_v2 else 11,
            lambda types: schema.build(
                types.ProduceRequest,
                transactional_id=self.name,
                acks=-1,
                timeout=timedelta(seconds=3),
                topic_data=(
                    schema.build(
                        types.TopicProduceData,
                        name=place[0],
                        partition_data=(
                            schema.build(
                                types.PartitionProduceData,
                                index=place[1],
                                records=bytes(batch),
                            ),
                        ),
                    ),
                ),
            ),
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        self._sequences[place] = sequence + len(values)
        fact.in_doubt.difference_update(values)
        fact.values.update(dict.fromkeys(values, place))

    async def _commit_offset(self, offset: int) -> None:
        if not self._is_v2:
            await self._ask(
                "add_offsets_to_txn",
                3,
                lambda types: schema.build(
                    types.AddOffsetsToTxnRequest, **self._named(), group_id=self.group
                ),
                lambda answer: answer.error_code,
            )
        coordinator: list[Agent] = []

        async def find() -> Agent:
            if not coordinator:
                while True:
                    try:
                        code, node = await self.client.find_coordinator(self.agent(), self.group)
                    except BrokenError:
                        code, node = 1, -1
                    found = self.world.agent_by_id(node) if not code else None
                    if found is not None:
                        coordinator.append(found)
                        break
                    self.move()
                    await self.pause()
            return coordinator[0]

        await self._ask(
            "txn_offset_commit",
            5 if self._is_v2 else 3,
            lambda types: schema.build(
                types.TxnOffsetCommitRequest,
                **self._named(),
                group_id=self.group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=(
                    schema.build(
                        types.TxnOffsetCommitRequestTopic,
                        name=TOPIC,
                        partitions=(
                            schema.build(
                                types.TxnOffsetCommitRequestPartition,
                                partition_index=0,
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            ),
                        ),
                    ),
                ),
            ),
            lambda answer: answer.topics[0].partitions[0].error_code,
            agent=find,
            moved=coordinator.clear,
        )

    async def _look_at_offset(self) -> None:
        """It alone moves its group's offset, and all its transactions are over."""
        try:
            code, node = await self.client.find_coordinator(self.agent(), self.group)
            agent = self.world.agent_by_id(node) if not code else None
            if agent is None:
                return
            code, offset = await self.client.fetch_offset(
                agent, self.group, (TOPIC, 0), stable=True
            )
        except BrokenError:
            self.move()
            return
        if not code and offset != self._offset:
            self.history.violate(
                "lost-offset", f"{self.name} at {agent}: {offset}, not {self._offset}"
            )
        self.history.count("stable offset fetched")

    async def _end(self, *, commits: bool) -> None:
        answer = await self._ask(
            "end_txn",
            5 if self._is_v2 else 3,
            lambda types: self._end_request(types, self._producer, commits=commits),
            lambda answer: answer.error_code,
        )
        if self._is_v2:
            self._producer = int(answer.producer_id), int(answer.producer_epoch)
            self._sequences.clear()

    def _end_request(self, types: Any, producer: tuple[int, int], *, commits: bool) -> Any:
        return schema.build(
            types.EndTxnRequest,
            transactional_id=self.name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commits,
        )

    @property
    def group(self) -> str:
        """Its own group, whose offset is the number of a transaction."""
        return f"group-{self.name}"

    def _named(self, prefix: str = "") -> dict[str, object]:
        return {
            f"{prefix}transactional_id": self.name,
            f"{prefix}producer_id": self._producer[0],
            f"{prefix}producer_epoch": self._producer[1],
        }

    async def _ask(
        self,
        api: str,
        version: int,
        make: Callable[[Any], Any],
        code_of: Callable[[Any], int],
        *,
        agent: Any = None,
        moved: Callable[[], object] | None = None,
    ) -> Any:
        """Ask agent after agent until one answers.

        Raises:
            GivenUpError: the answer is an error that no other agent would spare it.
        """
        while True:
            try:
                asked = self.agent() if agent is None else await agent()
                answer = await ask(self.client.connection(asked), api, version, make)
                code = int(code_of(answer))
                if not code:
                    return answer
                if code == ErrorCode.INVALID_TXN_STATE:
                    # One that has timed out is of an epoch that is over.
                    self.history.violate("wrong-transaction", f"{api} of {self.name}")
                if code not in RETRIED:
                    raise GivenUpError(f"{api} {ErrorCode(code).name}")
            except BrokenError:
                pass
            (moved or self.move)()
            await self.pause()

    # -- late requests ---------------------------------------------------------------------------

    def _open_connection(self) -> Connection:
        """A connection that is opened now, and used once more much later."""
        client = Client(self.world, self.name, self.chance.fork())
        agent = self.chance.pick(self.world.agents)
        self._later(self._touch(client, agent))
        # Not the client: it would open another one if this one breaks.
        return client.connection(agent)

    async def _touch(self, client: Client, agent: Agent) -> None:
        try:
            await client.find_coordinator(agent, self.group)
        except BrokenError:
            return

    async def _end_late(
        self, late: Connection, producer: tuple[int, int], *, commits: bool
    ) -> None:
        await asyncio.sleep(self.chance.uniform(0, 1.0))
        if not late.usable:
            return
        try:
            answer = await ask(
                late,
                "end_txn",
                5 if self._is_v2 else 3,
                lambda types: self._end_request(types, producer, commits=commits),
            )
            self.history.count(f"late end: {ErrorCode(int(answer.error_code)).name}")
        except BrokenError:
            self.history.count("late end: connection closed")

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def prepare_transactions(world: World) -> None:
    """The topic and its clients, which do not run yet."""
    chance = Chance(world.seed ^ 0x74786E)
    maker = Actor(world, "makes-transactional")

    configs = {name.replace("_", "."): value for name, value in world.durability_of(chance).items()}

    async def create() -> None:
        while True:
            try:
                code = await maker.client.create_topic(maker.agent(), TOPIC, PARTITIONS, configs)
            except BrokenError:
                code = int(ErrorCode.REQUEST_TIMED_OUT)
            if code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                return
            maker.move()
            await maker.pause()

    await world.within(world.heal_s, world.on_node(maker.name, create()), "create")
    world.actors += [
        Transactor(world, f"txn{number}", 20 + chance.below(60), is_v2=chance.happens(0.5))
        for number in range(2 + chance.below(2))
    ]
    world.actors += [CommittedReader(world, "committed0"), CommittedReader(world, "committed1")]


async def ask(connection: Connection, api: str, version: int, make: Callable[[Any], Any]) -> Any:
    """One request of a version. Raises: BrokenError."""
    body = schema.encode_request(make(schema.request_types(api, version)))
    answer = await connection.exchange(api, version, body)
    return schema.decode_response(api, version, answer)
