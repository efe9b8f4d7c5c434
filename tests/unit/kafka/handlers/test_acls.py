"""The three APIs about access rules, and answers that rules make shorter, or take back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.security.acl import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from support.acls import ALICE, ROOT, acl, allow, authorize, take_back
from support.api_client import ApiClient
from support.log_rig import Rig

VERSIONS = (1, 3)
ANY: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


class Admin:
    """The super user's client, and alice's."""

    def __init__(self, rig: Rig) -> None:
        self.broker = rig.agent.broker
        self.root, self.alice = ApiClient(self.broker), ApiClient(self.broker)
        self.root.connection.principal = ROOT
        self.alice.connection.principal = ALICE

    async def create(self, *bindings: AclBinding, version: int = 3) -> list[Any]:
        creations = tuple(
            self.root.part(
                "create_acls",
                version,
                "AclCreation",
                resource_type=binding.resource_type,
                resource_name=binding.name,
                resource_pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in bindings
        )
        answer = await self.root.call("create_acls", version, creations=creations)
        return list(answer.results)

    async def describe(self, version: int = 3, **wanted: Any) -> set[AclBinding]:
        answer = await self.root.call("describe_acls", version, **(ANY | wanted))
        assert answer.error_code.value == 0
        return {
            AclBinding(
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                rule.principal,
                rule.host,
                rule.operation,
                rule.permission_type,
            )
            for one in answer.resources
            for rule in one.acls
        }

    async def delete(self, *filters: dict[str, Any], version: int = 3) -> list[Any]:
        wanted = tuple(
            self.root.part("delete_acls", version, "DeleteAclsFilter", **(ANY | one))
            for one in filters
        )
        answer = await self.root.call("delete_acls", version, filters=wanted)
        return list(answer.filter_results)


@pytest.fixture
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    await rig.topic("t")
    await rig.topic("other")
    authorize(rig.agent.broker)
    yield Admin(rig)


def names(results: list[Any]) -> list[str]:
    return [one.error_code.name for one in results]


@pytest.mark.parametrize("version", VERSIONS)
async def test_rules_are_created_described_and_deleted(admin: Admin, version: int) -> None:
    prefix = acl(Operation.WRITE, name="o", pattern=PatternType.PREFIXED, host="10.0.0.0/8")
    group = acl(kind=ResourceType.GROUP, name="*", permission=Permission.DENY)
    assert names(await admin.create(acl(), prefix, group, version=version)) == ["none"] * 3
    assert names(await admin.create(acl(), version=version)) == ["none"]
    assert await admin.describe(version) == {acl(), prefix, group}
    about = {"resource_type_filter": 2, "resource_name_filter": "other", "pattern_type_filter": 2}
    assert await admin.describe(version, **about) == {prefix}
    first, second = await admin.delete(about, {"operation": 4}, version=version)
    for found in (first, second):
        assert found.error_code.name == "none"
        (gone,) = found.matching_acls
        assert (gone.resource_name, gone.pattern_type, gone.host) == ("o", 4, "10.0.0.0/8")
    assert await admin.describe(version) == {acl(), group}


async def test_each_rule_has_its_own_outcome(admin: Admin) -> None:
    bad = [acl(kind=1), acl(principal="alice"), acl(kind=ResourceType.CLUSTER), acl(name="")]
    results = await admin.create(acl(), *bad, acl(name="u"))
    assert names(results) == ["none", *["invalid_request"] * 4, "none"]
    assert results[3].error_message.endswith(CLUSTER_NAME)
    assert await admin.describe() == {acl(), acl(name="u")}


async def test_filters_with_unknown_numbers_find_nothing(admin: Admin) -> None:
    await admin.create(acl())
    (wrong, right) = await admin.delete({"operation": 0}, {"resource_name_filter": "none"})
    assert (wrong.error_code.name, right.error_code.name) == ("invalid_request", "none")
    answer = await admin.root.call("describe_acls", 3, **(ANY | {"pattern_type_filter": 0}))
    assert answer.error_code.name == "invalid_request"
    assert await admin.describe() == {acl()}


@pytest.mark.slow
async def test_more_rules_than_one_command_takes(admin: Admin) -> None:
    many = [acl(name=f"t{number}") for number in range(1_500)]
    assert set(names(await admin.create(*many))) == {"none"}
    assert await admin.describe() == set(many)
    (gone,) = await admin.delete({"principal_filter": ALICE})
    assert len(gone.matching_acls) == 1_500
    assert await admin.describe() == set()


async def test_without_an_authorizer_security_is_disabled(rig: Rig) -> None:
    await rig.topic("t")
    admin = Admin(rig)
    assert names(await admin.create(acl())) == ["security_disabled"]
    assert names(await admin.delete({})) == ["security_disabled"]
    answer = await admin.root.call("describe_acls", 3, **ANY)
    assert answer.error_code.name == "security_disabled"
    described = await _metadata(admin.alice, None)
    assert [topic.topic_authorized_operations for topic in described.topics] == [0b1101_1111_1000]


async def test_all_topics_are_those_that_the_client_may_describe(admin: Admin) -> None:
    assert (await _metadata(admin.alice, None)).topics == ()
    await allow(admin.broker, acl(Operation.READ, name="t"))
    found = await _metadata(admin.alice, None)
    (topic,) = found.topics
    assert topic.name == "t"
    assert topic.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert found.cluster_authorized_operations == 0
    everything = await _metadata(admin.root, None)
    assert {topic.name for topic in everything.topics} == {"t", "other"}
    pages = await admin.alice.call(
        "describe_topic_partitions", 0, topics=(), response_partition_limit=10, cursor=None
    )
    assert [topic.name for topic in pages.topics] == ["t"]


async def test_a_topic_is_created_by_who_may_create_it(admin: Admin) -> None:
    await allow(admin.broker, acl(Operation.DESCRIBE, name="*"))
    refused = await _metadata(admin.alice, "new", create=True)
    assert refused.topics[0].error_code.name == "topic_authorization_failed"
    assert admin.broker.view.topic("new") is None
    await allow(admin.broker, acl(Operation.CREATE, name="ne", pattern=PatternType.PREFIXED))
    await _metadata(admin.alice, "new", create=True)
    assert admin.broker.view.topic("new") is not None


async def test_operations_are_told_where_they_are_asked_for(admin: Admin) -> None:
    cluster = acl(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    for asks, before, after in (
        (True, 0, 1 << Operation.DESCRIBE),
        (False, *[UNKNOWN_OPERATIONS] * 2),
    ):
        for expected in (before, after):
            found = await admin.alice.call(
                "describe_cluster",
                1,
                include_cluster_authorized_operations=asks,
                endpoint_type=1,
            )
            assert found.cluster_authorized_operations == expected
            await allow(admin.broker, cluster)
        await take_back(admin.broker, cluster)


async def test_groups_are_listed_to_who_may_describe_them(admin: Admin) -> None:
    for group_id in ("g", "h"):
        await admin.root.call("offset_commit", 8, **_offsets(admin.root, group_id))
    assert await _groups(admin.alice) == set()
    await allow(admin.broker, acl(Operation.DESCRIBE, ResourceType.GROUP, "g"))
    assert await _groups(admin.alice) == {"g"}
    await allow(admin.broker, acl(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME))
    assert await _groups(admin.alice) == {"g", "h"}


async def test_offsets_of_topics_that_the_client_may_not_describe_are_left_out(
    admin: Admin,
) -> None:
    await admin.root.call("offset_commit", 8, **_offsets(admin.root, "g"))
    await allow(admin.broker, acl(Operation.DESCRIBE, ResourceType.GROUP, "g"))
    assert await _committed(admin.alice) == {}
    await allow(admin.broker, acl(Operation.DESCRIBE, name="other"))
    assert await _committed(admin.alice) == {"other": 7}


async def test_who_may_write_to_some_topic_may_do_so_idempotently(admin: Admin) -> None:
    async def error() -> str:
        answer = await admin.alice.call(
            "init_producer_id",
            4,
            transactional_id=None,
            transaction_timeout=timedelta(seconds=1),
            producer_id=-1,
            producer_epoch=-1,
        )
        return str(answer.error_code.name)

    assert await error() == "cluster_authorization_failed"
    written = acl(Operation.WRITE, name="any")
    await allow(admin.broker, written)
    assert await error() == "none"
    denied = acl(
        Operation.WRITE, name="a", pattern=PatternType.PREFIXED, permission=Permission.DENY
    )
    await allow(admin.broker, denied)
    assert await error() == "cluster_authorization_failed"
    await allow(admin.broker, acl(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME))
    assert await error() == "none"


async def test_a_fetch_that_waits_is_refused_once_its_permission_is_gone(admin: Admin) -> None:
    await allow(admin.broker, acl(Operation.READ))
    waiting = asyncio.ensure_future(_fetch(admin.alice, wait_s=20))
    await asyncio.sleep(0)
    assert not waiting.done()
    await take_back(admin.broker, acl(Operation.READ))
    await admin.root.produce("t", b"secret", producer=(-1, -1), sequence=-1, transactional=False)
    (topic,) = (await waiting).responses
    (partition,) = topic.partitions
    assert partition.error_code.name == "topic_authorization_failed"
    assert (partition.high_watermark, partition.log_start_offset) == (-1, -1)
    assert not partition.records


async def test_a_session_gives_and_refuses_by_the_rules_of_now(admin: Admin) -> None:
    await admin.root.produce("t", b"v", producer=(-1, -1), sequence=-1, transactional=False)
    begun = await _fetch(admin.alice, session=(0, 0))
    assert begun.responses[0].partitions[0].error_code.name == "topic_authorization_failed"
    await allow(admin.broker, acl(Operation.READ))
    again = await _fetch(admin.alice, session=(begun.session_id, 1), names=())
    assert again.responses[0].partitions[0].error_code.name == "none"
    await take_back(admin.broker, acl(Operation.READ))
    refused = await _fetch(admin.alice, session=(begun.session_id, 2), names=())
    assert refused.responses[0].partitions[0].error_code.name == "topic_authorization_failed"


async def test_a_transactional_id_is_looked_at_before_the_topic(admin: Admin) -> None:
    await allow(admin.broker, acl(Operation.WRITE))
    answer = await admin.alice.produce("t", b"v", producer=(1, 0), transactional_id="x")
    assert answer.error_code.name == "transactional_id_authorization_failed"


async def test_an_unknown_id_is_unknown_to_everyone(admin: Admin) -> None:
    answer = await admin.alice.produce(
        "absent",
        b"v",
        producer=(-1, -1),
        sequence=-1,
        transactional=False,
        transactional_id=None,
        version=13,
    )
    assert answer.error_code.name == "unknown_topic_id"


async def test_what_no_rule_is_about_may_be_everyones(rig: Rig) -> None:
    await rig.topic("t")
    await rig.topic("u")
    authorize(rig.agent.broker, allow_if_no_acl=True)
    admin = Admin(rig)
    await allow(admin.broker, acl(Operation.READ, name="u", principal="User:bob"))
    found = await _metadata(admin.alice, None)
    assert [topic.name for topic in found.topics] == ["t"]


async def _metadata(client: ApiClient, name: str | None, *, create: bool = False) -> Any:
    topics = None
    if name is not None:
        topics = (client.part("metadata", 9, "MetadataRequestTopic", name=name),)
    return await client.call(
        "metadata",
        9,
        topics=topics,
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def _offsets(client: ApiClient, group_id: str) -> dict[str, Any]:
    topics = tuple(
        client.part(
            "offset_commit",
            8,
            "OffsetCommitRequestTopic",
            name=name,
            partitions=(
                client.part(
                    "offset_commit",
                    8,
                    "OffsetCommitRequestPartition",
                    partition_index=0,
                    committed_offset=7,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                ),
            ),
        )
        for name in ("t", "other")
    )
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": topics,
    }


async def _groups(client: ApiClient) -> set[str]:
    answer = await client.call("list_groups", 5, states_filter=(), types_filter=())
    return {group.group_id for group in answer.groups}


async def _committed(client: ApiClient) -> dict[str, int]:
    wanted = client.part(
        "offset_fetch",
        9,
        "OffsetFetchRequestGroup",
        group_id="g",
        member_id=None,
        member_epoch=-1,
        topics=None,
    )
    answer = await client.call("offset_fetch", 9, groups=(wanted,), require_stable=False)
    (group,) = answer.groups
    assert group.error_code.name == "none"
    return {topic.name: topic.partitions[0].committed_offset for topic in group.topics}


async def _fetch(
    client: ApiClient,
    *,
    wait_s: float = 0.0,
    session: tuple[int, int] = (0, -1),
    names: tuple[str, ...] = ("t",),
) -> Any:
    topics = tuple(
        client.part(
            "fetch",
            12,
            "FetchTopic",
            topic=name,
            partitions=(
                client.part(
                    "fetch",
                    12,
                    "FetchPartition",
                    partition=0,
                    current_leader_epoch=-1,
                    fetch_offset=0,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=1 << 20,
                ),
            ),
        )
        for name in names
    )
    return await client.call(
        "fetch",
        12,
        replica_id=-1,
        max_wait=timedelta(seconds=wait_s),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=(),
        rack_id="",
    )
