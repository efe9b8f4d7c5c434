"""Credentials of users: list, make and delete them, at any server of Kafka's protocol."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import check
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.security.scram.credential import ScramMechanism, salt_password

SALT_BYTES: Final = 24


class Credential(NamedTuple):
    """A credential, as a server describes it."""

    user: str
    mechanism: ScramMechanism
    iterations: int


def save_credentials(
    client: Client,
    user: str,
    password: bytes,
    mechanisms: Sequence[ScramMechanism],
    *,
    iterations: int,
) -> None:
    """Give a user a password for some mechanisms. The server gets what is derived from it.

    Kafka takes one change of a user by a request, so each mechanism has its own.

    Raises:
        RefusedError: the server refuses.
    """

    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        fields = {
            "name": user,
            "mechanism": int(mechanism),
            "iterations": iterations,
            "salt": salt,
            "salted_password": salt_password(mechanism, password, salt=salt, iterations=iterations),
        }
        _alter(client, "save credential", upsertions=(("ScramCredentialUpsertion", fields),))


def delete_credentials(client: Client, user: str, mechanisms: Sequence[ScramMechanism]) -> None:
    """Delete a user's credentials of some mechanisms.

    Raises:
        RefusedError: the server refuses, or there is none.
    """

    for mechanism in mechanisms:
        fields = {"name": user, "mechanism": int(mechanism)}
        _alter(client, "delete credential", deletions=(("ScramCredentialDeletion", fields),))


def list_credentials(client: Client, users: Sequence[str] = ()) -> list[Credential]:
    """List credentials of the named users, or of all; a user without one has none in the list.

    Raises:
        RefusedError: the server refuses.
    """

    def request(types: ModuleType) -> Any:
        named = tuple(build(types.UserName, name=name) for name in dict.fromkeys(users))
        return build(types.DescribeUserScramCredentialsRequest, users=named or None)

    response = client.connection().request("describe_user_scram_credentials", request)
    check("list credentials", "the cluster", response.error_code, response.error_message)
    found = []
    for row in response.results:
        if row.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        check("list credentials", row.user, row.error_code, row.error_message)
        found += [
            Credential(row.user, ScramMechanism(one.mechanism), one.iterations)
            for one in row.credential_infos
        ]
    return sorted(found)


_Rows = tuple[tuple[str, Mapping[str, object]], ...]
"""Names of classes, and fields."""


def _alter(
    client: Client, operation: str, *, deletions: _Rows = (), upsertions: _Rows = ()
) -> None:
    def request(types: ModuleType) -> Any:
        return build(
            types.AlterUserScramCredentialsRequest,
            deletions=tuple(build(getattr(types, kind), **row) for kind, row in deletions),
            upsertions=tuple(build(getattr(types, kind), **row) for kind, row in upsertions),
        )

    response = client.connection().request("alter_user_scram_credentials", request)
    for row in response.results:
        check(operation, row.user, row.error_code, row.error_message)
