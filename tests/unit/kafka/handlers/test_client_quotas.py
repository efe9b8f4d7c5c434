"""The two APIs about quotas, and the APIs that controller_mutation_rate bounds.

The codes are those of a running Kafka 4.3.1, which was asked the same; docs/quotas.md, "Bounds",
says where they differ.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from penstock.kafka.admin.mutations import Mutations
from penstock.kafka.context import RequestContext
from penstock.kafka.handlers import alter_client_quotas
from support.api_client import ApiClient
from support.log_rig import Rig

VERSIONS = (0, 1)
RATE = "producer_byte_rate"
SOON = timedelta(seconds=5)
Entity = tuple[tuple[str, str | None], ...]
U: Entity = (("user", "u"),)


async def alter(
    client: ApiClient,
    *entries: tuple[Entity, dict[str, float | None]],
    version: int = 1,
    **fields: Any,
) -> list[str]:
    part = partial(client.part, "alter_client_quotas", version)
    asked = tuple(
        part(
            "EntryData",
            entity=tuple(
                part("EntityData", entity_type=kind, entity_name=name) for kind, name in entity
            ),
            ops=tuple(
                part("OpData", key=key, value=value or 0.0, remove=value is None)
                for key, value in ops.items()
            ),
        )
        for entity, ops in entries
    )
    fields = {"validate_only": False} | fields
    answer = await client.call("alter_client_quotas", version, entries=asked, **fields)
    assert [tuple((one.entity_type, one.entity_name) for one in e.entity) for e in answer.entries]
    return [entry.error_code.name for entry in answer.entries]


async def describe(
    client: ApiClient, *components: tuple[str, int, str | None], strict: bool = False, version=1
) -> Any:
    part = partial(client.part, "describe_client_quotas", version, "ComponentData")
    asked = tuple(part(entity_type=k, match_type=m, match=v) for k, m, v in components)
    answer = await client.call("describe_client_quotas", version, components=asked, strict=strict)
    if answer.error_code.value:
        assert answer.entries is None
        return answer.error_code.name
    return {
        tuple((one.entity_type, one.entity_name) for one in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


@pytest.fixture
def client(rig: Rig) -> ApiClient:
    return ApiClient(rig.agent.broker)


@pytest.mark.parametrize("version", VERSIONS)
async def test_quotas_are_set_described_and_taken_away(client: ApiClient, version: int) -> None:
    both: Entity = (("user", "u"), ("client-id", None))
    address: Entity = (("ip", "10.0.0.1"),)
    entries: list[Any] = [
        (U, {RATE: 1000.0, "request_percentage": 12.5}),
        (both, {RATE: 5.0}),
        ((("client-id", "c"),), {"controller_mutation_rate": 0.5}),
        (address, {"connection_creation_rate": 3.0}),
    ]
    assert await alter(client, *entries, version=version) == ["none"] * 4
    every = dict(entries)
    assert await describe(client, version=version) == every
    assert await alter(client, (U, {RATE: None, "request_percentage": 20.0})) == ["none"]
    every[U] = {"request_percentage": 20.0}
    ask = partial(describe, client, version=version)
    assert await ask(("user", 0, "u")) == {U: every[U], both: every[both]}
    assert await ask(("user", 0, "u"), strict=True) == {U: every[U]}
    assert await ask(("user", 2, None), ("client-id", 1, None)) == {both: every[both]}
    assert await ask(("user", 1, None)) == {}
    assert await ask(("ip", 0, "10.0.0.1")) == {address: every[address]}
    assert await ask(("user", 0, "nobody else")) == {}
    assert (
        await alter(client, (U, {"request_percentage": None}), (both, {RATE: None})) == ["none"] * 2
    )
    assert set(await ask()) == {(("client-id", "c"),), address}


async def test_each_entity_is_changed_whole_or_refused(client: ApiClient) -> None:
    refused = "invalid_request"
    assert await alter(
        client,
        (U, {RATE: 1000.0, "nope": 1.0}),
        ((("bad", "u"),), {RATE: 1.0}),
        ((), {RATE: 1.0}),
        ((("user", "a"), ("user", "b")), {}),
        ((("user", ""),), {RATE: 1.0}),
        ((("ip", "u"),), {"connection_creation_rate": 1.0}),
        ((("ip", "1.2.3.4"),), {RATE: 1.0}),
        ((("ip", "1.2.3.4"), ("user", "u")), {}),
        ((("client-id", "c"),), {RATE: 1.5}),
        ((("client-id", "d"),), {RATE: -1.0}),
        ((("client-id", "twice"),), {RATE: 1.0}),
        ((("client-id", "twice"),), {RATE: 2.0}),
        ((("client-id", "good"),), {RATE: 1.0}),
    ) == [refused] * 12 + ["none"]
    assert await describe(client) == {(("client-id", "good"),): {RATE: 1.0}}


async def test_more_entities_than_there_may_be_are_refused(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alter_client_quotas, "ENTITIES_MAX", 2)
    entries: list[Any] = [((("user", name),), {RATE: 1.0}) for name in "abc"]
    assert await alter(client, *entries) == ["none", "none", "policy_violation"]
    # What is there may change, and what goes makes room.
    assert await alter(client, ((("user", "a"),), {RATE: 2.0}), entries[2]) == [
        "none",
        "policy_violation",
    ]
    assert await alter(client, ((("user", "a"),), {RATE: None})) == ["none"]
    assert await alter(client, entries[2]) == ["none"]


async def test_a_key_that_is_there_twice_is_refused(client: ApiClient) -> None:
    part = partial(client.part, "alter_client_quotas", 1)
    ops = tuple(part("OpData", key=RATE, value=value, remove=False) for value in (1.0, 2.0))
    entity = (part("EntityData", entity_type="user", entity_name="u"),)
    entries = (part("EntryData", entity=entity, ops=ops),)
    answer = await client.call("alter_client_quotas", 1, entries=entries, validate_only=False)
    assert answer.entries[0].error_code.name == "invalid_request"
    assert await describe(client) == {}


async def test_what_is_only_checked_changes_nothing(client: ApiClient) -> None:
    outcome = await alter(client, (U, {RATE: 1.0}), ((), {}), validate_only=True)
    assert outcome == ["none", "invalid_request"]
    assert await describe(client) == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("bad", 0, "u")], "unsupported_version"),
        ([("", 0, "u")], "invalid_request"),
        ([("user", 5, "u")], "invalid_request"),
        ([("user", 0, None)], "invalid_request"),
        ([("user", 1, "u")], "invalid_request"),
        ([("user", 2, "u")], "invalid_request"),
        ([("user", 0, "u"), ("user", 0, "v")], "invalid_request"),
        ([("user", 0, "u"), ("ip", 0, "1.1.1.1")], "invalid_request"),
    ],
)
async def test_a_filter_that_means_nothing_is_refused(
    client: ApiClient, components: list[Any], code: str
) -> None:
    assert await describe(client, *components) == code


@pytest.mark.slow
async def test_ten_thousand_entities_are_many_commands_and_one_answer(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of 255 characters: what would be a command of 3 MB is cut."""
    entries: list[Any] = [
        ((("client-id", f"{number:0255d}"),), {RATE: 1.0}) for number in range(10_000)
    ]
    commands: list[Any] = []
    commit = client.broker.committer.commit

    async def noting(given: Any, **options: Any) -> Any:
        commands.extend(given)
        return await commit(given, **options)

    monkeypatch.setattr(client.broker.committer, "commit", noting)
    assert set(await alter(client, *entries)) == {"none"}
    assert sum(len(one.changes) for one in commands) == 10_000
    assert max(len(one.changes) for one in commands) <= 65_536 // 255 + 1
    assert await describe(client) == dict(entries)


async def create(client: ApiClient, version: int, *names: str, partitions: int = 4) -> Any:
    part = partial(client.part, "create_topics", version, "CreatableTopic")
    topics = tuple(
        part(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    return await client.call(
        "create_topics", version, topics=topics, timeout=SOON, validate_only=False
    )


@pytest.mark.parametrize("version", [6, 7])
async def test_the_answer_says_for_how_long_to_wait(client: ApiClient, version: int) -> None:
    await alter(client, ((("client-id", "client"),), {"controller_mutation_rate": 1.0}))
    context = RequestContext(19, version, 1, "client", "h", client.broker, client.connection)
    mutations = Mutations(context, "create_topics")
    assert mutations.refusal(10) is None
    assert context.throttle_s == 0
    assert mutations.refusal(5) is None
    assert 4 < context.throttle_s <= 5
    refused = mutations.refusal(1)
    assert refused is not None
    assert "5.0 s" in (refused.message or "")
    assert context.throttle_s <= 5, "what was refused is not charged"


async def test_a_client_that_creates_too_much_is_refused_from_the_version_that_knows_it(
    rig: Rig, client: ApiClient
) -> None:
    await alter(client, ((("client-id", "client"),), {"controller_mutation_rate": 1.0}))
    # A burst of ten is there; the topic that goes beyond it is created still.
    answer = await create(client, 7, "a", "b", "c", "d", "e")
    codes = [one.error_code.name for one in answer.topics]
    assert codes == ["none"] * 3 + ["throttling_quota_exceeded"] * 2
    assert {topic.name for topic in rig.agent.broker.view.topics()} == {"a", "b", "c"}
    deleted = await client.call("delete_topics", 5, topic_names=("a",), timeout=SOON)
    assert deleted.responses[0].error_code.name == "throttling_quota_exceeded"
    grown = client.part(
        "create_partitions", 3, "CreatePartitionsTopic", name="a", count=9, assignments=None
    )
    answer = await client.call(
        "create_partitions", 3, topics=(grown,), timeout=SOON, validate_only=False
    )
    assert answer.results[0].error_code.name == "throttling_quota_exceeded"
    # A client of an older version does not know the error: it is only asked to wait.
    answer = await create(client, 5, "f")
    assert answer.topics[0].error_code.name == "none"
    rig.clock.advance(20_000)
    answer = await create(client, 7, "g")
    assert answer.topics[0].error_code.name == "none"
