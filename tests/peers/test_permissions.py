"""Kafka 4.3.1 refuses what we refuse, for each API, each version and each set of permissions.

Both get the requests of `support.permission_cases` from alice, with each subset of the permissions
that docs/acls.md names: none, all, and all that lie between.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peers.apache_kafka import USERS_PORT, running_kafka
from penstock.kafka.registry import BY_MODULE
from penstock.security.acl import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from support.acls import ALICE, allow, authorize, take_back
from support.api_client import ApiClient
from support.log_rig import Rig, opened_rig
from support.permission_cases import ANY_ACL, CASES, REFUSALS, Asking, cluster, errors
from support.wire_face import WireFace

MINUTE = timedelta(minutes=1)
TRIES_MAX = 1200
"""How often something is looked for, every tenth of a second."""

ACLS = 3
"""The version of requests about access rules."""

NOT_YET = {"not_coordinator", "coordinator_not_available", "coordinator_load_in_progress"}
RULE_SETS = 60
NAMES = ("t", "ta", "tabu", "u", "x")
"""Of topics and groups."""
BEFORE = {
    "offset_delete": "offset_commit",
    "consumer_group_describe": "consumer_group_heartbeat",
}
"""Without a group, permissions that come after the look for it don't matter."""
MEMBERS_FROM = 4
"""The version of JoinGroup from which on a client without an id is answered at once, with one
(KIP-394); before, it waits for the members that earlier requests have left."""

MORE = {"add_partitions_to_txn": (cluster(Operation.CLUSTER_ACTION),)}
"""Permissions that matter besides a case's own, in other versions."""


@pytest.fixture(scope="module")
def kafka_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_kafka(
        tmp_path_factory.mktemp("kafka"),
        users=("alice", "root"),
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS;User:root",
        delete_topic_enable="true",
        auto_create_topics_enable="false",
        group_initial_rebalance_delay_ms="0",
    ) as port:
        yield port


class Theirs:
    """Kafka with a topic t, and its clients: alice, and an administrator."""

    def __init__(self, port: int) -> None:
        self._admin = WireFace("127.0.0.1", port)
        self.alice = WireFace("127.0.0.1", port + USERS_PORT, user="alice")

    async def answer(self, api: str, version: int) -> Any:
        asking = Asking(self.alice, "t", await self.topic("t"), version)
        return await self.alice.call(api, version, **CASES[api].fields(asking))

    async def allow(self, bindings: Sequence[AclBinding]) -> None:
        """Have these rules and no others."""
        part = self._admin.part
        everything = part("delete_acls", ACLS, "DeleteAclsFilter", **ANY_ACL)
        await self._admin.call("delete_acls", ACLS, filters=(everything,))
        creations = tuple(
            part(
                "create_acls",
                ACLS,
                "AclCreation",
                resource_type=int(each.resource_type),
                resource_name=each.name,
                resource_pattern_type=int(each.pattern_type),
                principal=each.principal,
                host=each.host,
                operation=int(each.operation),
                permission_type=int(each.permission),
            )
            for each in bindings
        )
        made = await self._admin.call("create_acls", ACLS, creations=creations)
        assert not list(errors(made))
        for _ in range(TRIES_MAX):
            found = await self._admin.call("describe_acls", ACLS, **ANY_ACL)
            if sum(len(each.acls) for each in found.resources) == len(bindings):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"Kafka's authorizer doesn't know {bindings} yet")

    async def serve_groups(self) -> None:
        """Wait until coordinators of the group g and of the transactional id x answer."""
        for api, more in (
            ("find_coordinator", {}),
            ("find_coordinator", {"key_type": 1, "coordinator_keys": ("x",)}),
            ("offset_fetch", {}),
            ("end_txn", {}),
        ):
            await self._until_served(api, more)

    async def _until_served(self, api: str, more: dict[str, Any]) -> None:
        asking = Asking(self._admin, "t", bytes(16))
        fields = CASES[api].fields(asking) | more
        for _ in range(TRIES_MAX):
            found = await self._admin.call(api, CASES[api].version, **fields)
            if not set(errors(found)) & NOT_YET:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"Kafka doesn't answer {api} yet")

    async def topic(self, name: str) -> bytes:
        """The id of a topic, which is made where it is missing."""
        for _ in range(TRIES_MAX):
            asking = Asking(self._admin, name, bytes(16), 12)
            shown = await self._admin.call("metadata", 12, **CASES["metadata"].fields(asking))
            (topic,) = shown.topics
            if topic.error_code.name == "unknown_topic_or_partition":
                await self._make_topic(name)
            elif not list(errors(topic)):
                return bytes(topic.topic_id.bytes)
            await asyncio.sleep(0.1)
        raise AssertionError("Kafka doesn't serve the topic")

    async def _make_topic(self, name: str) -> None:
        wanted = self._admin.part(
            "create_topics",
            5,
            "CreatableTopic",
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(),
        )
        await self._admin.call(
            "create_topics", 5, topics=(wanted,), timeout=MINUTE, validate_only=False
        )


class Ours:
    """A broker of ours with the same."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._broker = rig.agent.broker
        authorize(self._broker)
        self._bindings: Sequence[AclBinding] = ()
        self.alice = ApiClient(self._broker)
        self.alice.connection.principal = ALICE

    async def answer(self, api: str, version: int) -> Any:
        asking = Asking(self.alice, "t", await self.topic("t"), version)
        return await self.alice.call(api, version, **CASES[api].fields(asking))

    async def topic(self, name: str) -> bytes:
        """The id of a topic, which is made where it is missing."""
        if self._broker.view.topic(name) is None:
            await self._rig.topic(name)
        found = self._broker.view.topic(name)
        assert found is not None
        return found.topic_id

    async def allow(self, bindings: Sequence[AclBinding]) -> None:
        """Have these rules and no others."""
        if self._bindings:
            await take_back(self._broker, *self._bindings)
        if bindings:
            await allow(self._broker, *bindings)
        self._bindings = bindings


@pytest.fixture
async def theirs(kafka_port: int) -> Theirs:
    made = Theirs(kafka_port)
    await made.allow(())
    await made.serve_groups()
    return made


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    async with opened_rig(tmp_path) as rig:
        yield Ours(rig)


@pytest.mark.parametrize("api", sorted(CASES, key="init_producer_id".__eq__))
async def test_kafka_refuses_the_same(ours: Ours, theirs: Theirs, api: str) -> None:
    """The last one makes the transactional id: kio reads no description of one that never began."""
    entry = BY_MODULE[api]
    wanted = (*CASES[api].needs, *MORE.get(api, ()))
    if api in BEFORE:
        for side in (ours, theirs):
            await side.allow(CASES[BEFORE[api]].needs)
            await side.answer(BEFORE[api], CASES[BEFORE[api]].version)
    for count in range(len(wanted) + 1):
        for bindings in itertools.combinations(wanted, count):
            await ours.allow(bindings)
            await theirs.allow(bindings)
            is_allowed = count == len(wanted)
            first = MEMBERS_FROM if api == "join_group" and is_allowed else entry.versions_min
            for version in range(first, entry.versions_max + 1):
                said = set(errors(await ours.answer(api, version))) & REFUSALS
                kafka_said = set(errors(await theirs.answer(api, version))) & REFUSALS
                assert said == kafka_said, (version, bindings)


async def test_random_rules_allow_the_same(ours: Ours, theirs: Theirs) -> None:
    for name in NAMES:
        await ours.topic(name)
        await theirs.topic(name)
    for number in range(RULE_SETS):
        random = Random(number)
        rules = {_rule(random) for _ in range(random.randint(1, 12))}
        await ours.allow(sorted(rules))
        await theirs.allow(sorted(rules))
        assert await _operations(ours) == await _operations(theirs), sorted(rules)


async def _operations(side: Ours | Theirs) -> dict[str, int]:
    """What alice may do, by resource, as the describing answers say."""
    client = side.alice
    asking = Asking(client, "", bytes(16))
    cases = {api: CASES[api].fields(asking) for api in ("metadata", "describe_groups")}
    topics = tuple(
        asking.part("metadata", 9, "MetadataRequestTopic", name=name, topic_id=None)
        for name in NAMES
    )
    shown = await client.call("metadata", 9, **cases["metadata"] | {"topics": topics})
    groups = await client.call("describe_groups", 5, **cases["describe_groups"] | {"groups": NAMES})
    return (
        {"cluster": shown.cluster_authorized_operations}
        | {f"topic {each.name}": each.topic_authorized_operations for each in shown.topics}
        | {f"group {each.group_id}": each.authorized_operations for each in groups.groups}
    )


def _rule(random: Random) -> AclBinding:
    kind = random.choice([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER])
    pattern = random.choice([PatternType.LITERAL, PatternType.LITERAL, PatternType.PREFIXED])
    name = random.choice(["*", "t", "ta", "tab", "u"])
    if kind == ResourceType.CLUSTER:
        name, pattern = CLUSTER_NAME, PatternType.LITERAL
    elif name == "*":
        pattern = PatternType.LITERAL
    return AclBinding(
        kind,
        name,
        pattern,
        random.choice([ALICE, ALICE, "User:*", "User:bob"]),
        random.choice(["*", "*", "127.0.0.1", "10.0.0.1"]),
        random.choice([each for each in Operation if each > Operation.ANY]),
        random.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    )
