"""What the tests of the cluster's face ask of its agents, and what comes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from support.cluster_face import ClusterAgent, World
from support.waiting import until

LATEST = -1


async def list_offsets(agent: ClusterAgent, partitions: range, name: str = "flights") -> list[Any]:
    request = tuple(
        agent.part(
            "list_offsets",
            4,
            "ListOffsetsPartition",
            partition_index=index,
            current_leader_epoch=-1,
            timestamp=LATEST,
        )
        for index in partitions
    )
    topic = agent.part("list_offsets", 4, "ListOffsetsTopic", name=name, partitions=request)
    answer = await agent.call("list_offsets", 4, replica_id=-1, isolation_level=0, topics=(topic,))
    return [(one.error_code.value, one.offset) for one in answer.topics[0].partitions]


async def metadata(agent: ClusterAgent, *names: str, client_id: str = "client") -> Any:
    topics = tuple(
        agent.part("metadata", 9, "MetadataRequestTopic", name=name, topic_id=None)
        for name in names
    )
    return await agent.call(
        "metadata",
        9,
        client_id=client_id,
        topics=topics or None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


async def topic_error(agent: ClusterAgent, name: str) -> int:
    return int((await metadata(agent, name)).topics[0].error_code.value)


async def create(agent: ClusterAgent, name: str, **changes: Any) -> int:
    fields: dict[str, Any] = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    topic = agent.part("create_topics", 4, "CreatableTopic", **(fields | changes))
    answer = await agent.call(
        "create_topics", 4, topics=(topic,), timeout=timedelta(seconds=9), validate_only=False
    )
    return int(answer.topics[0].error_code.value)


async def fetch(
    agent: ClusterAgent,
    offset: int,
    *,
    name: str = "flights",
    number: int = 0,
    rack: str = "",
    wait_ms: int = 0,
    client_id: str = "client",
    version: int = 11,
    session: tuple[int, int] = (0, -1),
) -> Any:
    fields: dict[str, Any] = {
        "partition": number,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    partition = agent.part("fetch", version, "FetchPartition", **fields)
    topic = agent.part("fetch", version, "FetchTopic", topic=name, partitions=(partition,))
    answer = await agent.call(
        "fetch",
        version,
        client_id=client_id,
        replica_id=-1,
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id=rack,
    )
    (one,) = answer.responses[0].partitions
    return one


async def zoned(world: World, *, level_max: int = 2) -> list[ClusterAgent]:
    agents = [
        await world.agent(number, zone=zone, level_max=level_max)
        for number, zone in ((1, "a"), (2, "a"), (3, "b"), (4, ""))
    ]
    await until(lambda: all(len(agent.view.agents()) == 4 for agent in agents))
    await until(lambda: agents[0].view.feature_level == level_max)
    await agents[0].topic("flights", 60)
    await asyncio.sleep(5)
    return agents


def leaders(answer: Any) -> Counter[int]:
    return Counter(one.leader_id for one in answer.topics[0].partitions)
