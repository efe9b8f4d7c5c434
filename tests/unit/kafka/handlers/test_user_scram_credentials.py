"""AlterUserScramCredentials and DescribeUserScramCredentials: answers as Kafka 4.3.1's."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kafka.handlers import alter_user_scram_credentials
from penstock.security.scram.credential import ScramMechanism, has_password, salt_password
from support.acls import ALICE, ROOT, authorize
from support.api_client import ApiClient
from support.log_rig import Rig

ALTER, DESCRIBE = "alter_user_scram_credentials", "describe_user_scram_credentials"
SALT = b"a salt"


class Users:
    """An administrator's client."""

    def __init__(self, rig: Rig) -> None:
        self.broker = rig.agent.broker
        self.client = ApiClient(self.broker)

    def upsertion(self, name: str, mechanism: int = 1, **changes: Any) -> Any:
        size = 64 if mechanism == 2 else 32
        fields = {"iterations": 4096, "salt": SALT, "salted_password": bytes(size)}
        return self.client.part(
            ALTER,
            0,
            "ScramCredentialUpsertion",
            name=name,
            mechanism=mechanism,
            **(fields | changes),
        )

    def deletion(self, name: str, mechanism: int = 1) -> Any:
        return self.client.part(ALTER, 0, "ScramCredentialDeletion", name=name, mechanism=mechanism)

    async def alter(self, *upsertions: Any, gone: tuple[Any, ...] = ()) -> list[tuple[str, str]]:
        reply = await self.client.call(ALTER, 0, deletions=gone, upsertions=upsertions)
        return [(row.user, row.error_code.name) for row in reply.results]

    async def describe(self, *names: str) -> dict[str, list[tuple[int, int]]]:
        users = tuple(self.client.part(DESCRIBE, 0, "UserName", name=name) for name in names)
        reply = await self.client.call(DESCRIBE, 0, users=users or None)
        assert reply.error_code.name == "none"
        return {
            row.user: [(one.mechanism, one.iterations) for one in row.credential_infos]
            for row in reply.results
            if row.error_code.name == "none"
        }


@pytest.fixture
def users(rig: Rig) -> Users:
    return Users(rig)


async def test_a_password_that_was_saved_is_the_user_s(users: Users) -> None:
    for mechanism in ScramMechanism:
        salted = salt_password(mechanism, b"secret", salt=SALT, iterations=4096)
        wanted = users.upsertion("alice", int(mechanism), salted_password=salted)
        assert await users.alter(wanted) == [("alice", "none")]
        known = users.broker.view.credentials["alice"][mechanism]
        assert has_password(known, b"secret")
        assert not has_password(known, b"Secret")
        # What is kept doesn't let its reader make a proof.
        assert salted not in (known.stored_key, known.server_key)


async def test_users_are_described_and_deleted(users: Users) -> None:
    await users.alter(users.upsertion("alice"))
    await users.alter(users.upsertion("alice", 2, iterations=8192))
    await users.alter(users.upsertion("bob"))
    assert await users.describe() == {"alice": [(1, 4096), (2, 8192)], "bob": [(1, 4096)]}
    assert await users.describe("bob", "nobody") == {"bob": [(1, 4096)]}
    assert await users.alter(gone=(users.deletion("alice", 2), users.deletion("bob"))) == [
        ("alice", "none"),
        ("bob", "none"),
    ]
    assert await users.describe() == {"alice": [(1, 4096)]}


async def test_one_user_s_refusal_is_not_another_s(users: Users) -> None:
    found = await users.alter(users.upsertion("alice", iterations=1), users.upsertion("bob"))
    assert found == [("alice", "unacceptable_credential"), ("bob", "none")]
    assert await users.describe() == {"bob": [(1, 4096)]}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": ""}, "unacceptable_credential"),
        ({"iterations": 4095}, "unacceptable_credential"),
        ({"iterations": 16385}, "unacceptable_credential"),
        ({"salt": b""}, "unacceptable_credential"),
        ({"salt": bytes(256)}, "unacceptable_credential"),
        ({"salted_password": b"short"}, "unacceptable_credential"),
        ({"name": "x" * 256}, "unacceptable_credential"),
        ({"mechanism": 0}, "unsupported_sasl_mechanism"),
        ({"mechanism": 3}, "unsupported_sasl_mechanism"),
    ],
)
async def test_what_can_not_be_a_credential_is_refused(
    users: Users, changes: dict[str, Any], error: str
) -> None:
    name = changes.pop("name", "alice")
    assert await users.alter(users.upsertion(name, **changes)) == [(name, error)]
    assert await users.describe() == {}


async def test_a_user_is_changed_once_by_a_request(users: Users) -> None:
    """The first reason is the answer: each was asked of Kafka 4.3.1."""
    twice, absent = [("alice", "duplicate_resource")], [("alice", "resource_not_found")]
    one, other = users.upsertion("alice"), users.upsertion("alice", 2)
    assert await users.alter(one, one) == twice
    assert await users.alter(one, other) == twice
    assert await users.alter(one, users.upsertion("alice", 2, iterations=1)) == twice
    gone = (users.deletion("alice"),)
    assert await users.alter(gone=gone) == absent
    assert await users.alter(one, gone=gone) == absent
    assert await users.alter(other, gone=gone) == absent
    assert await users.describe() == {}
    await users.alter(one)
    assert await users.alter(one, gone=gone) == twice
    assert await users.alter(other, gone=gone) == twice
    assert await users.describe() == {"alice": [(1, 4096)]}


async def test_texts_are_as_kafka_s(users: Users) -> None:
    await users.alter(users.upsertion("alice"))
    named = [users.client.part(DESCRIBE, 0, "UserName", name=name) for name in ("alice", "bob")]
    reply = await users.client.call(DESCRIBE, 0, users=(*named, named[1]))
    assert reply.error_message == ""
    assert [(row.user, row.error_code.name, row.error_message) for row in reply.results] == [
        ("alice", "none", ""),
        (
            "bob",
            "duplicate_resource",
            "Cannot describe SCRAM credentials for the same user twice in a single request: bob",
        ),
    ]
    reply = await users.client.call(DESCRIBE, 0, users=(named[1],))
    assert [row.error_message for row in reply.results] == [
        "Attempt to describe a user credential that does not exist: bob"
    ]
    reply = await users.client.call(
        ALTER, 0, deletions=(users.deletion("bob"),), upsertions=(users.upsertion("alice"),)
    )
    assert [(row.user, row.error_message) for row in reply.results] == [
        ("bob", "Attempt to delete a user credential that does not exist"),
        ("alice", None),
    ]


async def test_so_many_credentials_are_kept(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_user_scram_credentials, "CREDENTIALS_MAX", 2)
    assert await users.alter(*(users.upsertion(name) for name in ("a", "b", "c"))) == [
        ("a", "none"),
        ("b", "none"),
        ("c", "unacceptable_credential"),
    ]
    # Another password for one that is kept needs no room.
    assert await users.alter(users.upsertion("a", iterations=5000)) == [("a", "none")]
    await users.alter(gone=(users.deletion("b"),))
    assert await users.alter(users.upsertion("c")) == [("c", "none")]


async def test_users_who_may_not_learn_nothing(users: Users) -> None:
    await users.alter(users.upsertion("alice"))
    authorize(users.broker)
    users.client.connection.principal = ALICE
    refused = [("alice", "cluster_authorization_failed"), ("b", "cluster_authorization_failed")]
    assert await users.alter(users.upsertion("b"), gone=(users.deletion("alice"),)) == refused
    reply = await users.client.call(DESCRIBE, 0, users=None)
    assert reply.error_code.name == "cluster_authorization_failed"
    assert reply.results == ()
    users.client.connection.principal = ROOT
    users.client.connection.access = None
    assert await users.describe() == {"alice": [(1, 4096)]}
