"""Handlers of environments and keys, which are Penstock's own calls."""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.authz.service.call import Answer, Call, answer
from penstock.authz.service.directory import SCOPES, WRITE, Access, Directory
from penstock.authz.service.environment import Environment
from penstock.authz.service.handling import Answering, decoder
from penstock.authz.state import entries
from penstock.authz.state.entries import Outcome, Refused
from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
NAME_RULE: Final = "1 to 63 of a-z, 0-9 and -, not beginning with -"
_KEY_NAME_MAX: Final = 100


class EnvironmentIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment to create."""

    name: str


class KeyIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create."""

    environment: str
    scope: str = WRITE
    name: str = ""


class RevokeIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to revoke, by the number that names it."""

    number: str


_read_environment = decoder(EnvironmentIn)
_read_key = decoder(KeyIn)
_read_revoke = decoder(RevokeIn)


class Admin:
    """Lists and changes environments and keys. Event loop only.

    Args:
        opened: opens an environment that was created.
    """

    def __init__(self, directory: Directory, opened: Callable[[str], Environment]) -> None:
        self._directory = directory
        self._opened = opened

    def environments(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /v1/environments."""
        return answer({"environments": self._directory.environments})

    async def create_environment(
        self,
        environment: Environment,  # noqa: ARG002
        access: Access,  # noqa: ARG002
        call: Call,
    ) -> Answer:
        """POST /v1/environments."""
        name = _read_environment(call.body).name
        check_name(name)
        _refuse(await self._directory.create_environment(name), "environment", name)
        opened = self._opened(name)
        return answer({"name": name, "position": opened.position})

    def keys(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /v1/keys: all keys, without their texts."""
        return answer({"keys": [msgspec.to_builtins(key) for key in self._directory.keys]})

    async def create_key(
        self,
        environment: Environment,  # noqa: ARG002
        access: Access,  # noqa: ARG002
        call: Call,
    ) -> Answer:
        """POST /v1/keys: the answer alone has the key's text."""
        given = _read_key(call.body)
        if given.scope not in SCOPES:
            detail = f"the scope {given.scope[:50]!r} isn't one of {', '.join(SCOPES)}"
            raise InvalidRequestError("create", "key", detail)
        if len(given.name) > _KEY_NAME_MAX:
            detail = f"its name has more than {_KEY_NAME_MAX} characters"
            raise InvalidRequestError("create", "key", detail)
        text, number, outcome = await self._directory.add_key(
            given.environment, given.scope, given.name
        )
        _refuse(outcome, "environment", given.environment)
        return answer({"key": text, "number": number})

    async def revoke_key(
        self,
        environment: Environment,  # noqa: ARG002
        access: Access,
        call: Call,
    ) -> Answer:
        """DELETE /v1/keys; the key that asks can't revoke itself."""
        number = _read_revoke(call.body).number
        if number == access.number:
            raise InvalidRequestError("revoke", "key", "a key can't revoke itself", "use another")
        _refuse(await self._directory.revoke_key(number), "key", number)
        return answer({"message": "revoked"})


def check_name(name: str) -> None:
    """Check an environment's name, which is also its file's. Raises: InvalidRequestError."""
    if not _NAME.fullmatch(name):
        detail = f"{name[:100]!r} isn't a name: {NAME_RULE}"
        raise InvalidRequestError("create", "environment", detail)


def _refuse(outcome: Outcome, subject: str, name: str) -> None:
    if not isinstance(outcome, Refused):
        return
    shown = name[:100]
    error: PenstockError
    if outcome.reason == entries.EXISTS:
        error = ConflictError("create", subject, f"the {subject} {shown} exists already")
    elif outcome.reason == entries.MISSING:
        error = NotFoundError("find", subject, f"the {subject} {shown} doesn't exist")
    else:
        error = ConflictError("create", subject, f"there are {outcome.number:,} already")
    raise error
