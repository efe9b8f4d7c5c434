"""`penstock key` makes, lists and revokes API keys by these HTTP calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.http.agents_api import answered, json_response, note_change
from penstock.app.http.connection import read_body
from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError, OverloadedError
from penstock.ports.random import Random
from penstock.security.api_key import (
    ID_BYTES,
    SECRET_BYTES,
    ApiKey,
    digest_of,
    key_problem,
    new_key,
)
from penstock.state.answers import AnyAnswer, Refused
from penstock.state.security_commands import API_KEYS_MAX, DeleteApiKey, SaveApiKey

SECONDS_MAX: Final = 10 * 366 * 86_400
KEYS_PATH: Final = "/v1/keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySources:
    """The sources of the answers.

    Args:
        keys: returns the keys by id, as this agent has applied them.
        commit: journals a command; returns once this agent has applied it.
    """

    keys: Callable[[], Mapping[str, ApiKey]]
    commit: Callable[[SaveApiKey | DeleteApiKey], Awaitable[AnyAnswer]]
    random: Random
    now_ms: Callable[[], int]


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/keys. `seconds`: after which it expires; 0: never."""

    principal: str
    note: str = ""
    seconds: Annotated[int, msgspec.Meta(ge=0, le=SECONDS_MAX)] = 0


def key_routes(sources: KeySources) -> Sequence[BaseRoute]:
    """Return the routes, for an application that checks who calls."""

    async def list_keys(_: Request) -> Response:
        now_ms = sources.now_ms()
        keys = sorted(sources.keys().values(), key=lambda key: (key.principal, key.key_id))
        return json_response({"keys": [_described(key, now_ms) for key in keys]})

    async def create(request: Request) -> Response:
        wanted = msgspec.json.decode(await read_body(request), type=KeyRequest)
        if len(sources.keys()) >= API_KEYS_MAX:
            raise ConflictError(
                "make API key",
                wanted.principal,
                f"there are {API_KEYS_MAX} keys",
                "revoke some that are not used",
            )
        now_ms = sources.now_ms()
        random = sources.random
        key_id, secret, text = new_key(
            random.token_bytes(ID_BYTES), random.token_bytes(SECRET_BYTES)
        )
        key = ApiKey(
            key_id=key_id,
            digest=digest_of(secret),
            principal=wanted.principal,
            note=wanted.note,
            expires_ms=now_ms + wanted.seconds * 1000 if wanted.seconds else 0,
        )
        problem = key_problem(key)
        if problem:
            raise InvalidRequestError("make API key", repr(wanted.principal[:80]), problem)
        answer = await sources.commit(SaveApiKey(key=key))
        if isinstance(answer, Refused):
            # 64 random bits that another key has.
            raise OverloadedError("make API key", key_id, answer.detail, "try again")
        note_change(request, f"API key {key_id} made for {wanted.principal!r}")
        return json_response({**_described(key, now_ms), "key": text})

    async def revoke(request: Request) -> Response:
        key_id: str = request.path_params["key"]
        answer = await sources.commit(DeleteApiKey(key_id=key_id))
        if isinstance(answer, Refused):
            raise NotFoundError("revoke API key", repr(key_id[:32]), "there is no such key")
        note_change(request, f"API key {key_id} revoked")
        return json_response({})

    return [
        Route(KEYS_PATH, answered(list_keys), methods=["GET"]),
        Route(KEYS_PATH, answered(create), methods=["POST"]),
        Route(KEYS_PATH + "/{key}", answered(revoke), methods=["DELETE"]),
    ]


def _described(key: ApiKey, now_ms: int) -> dict[str, object]:
    return {
        "id": key.key_id,
        "principal": key.principal,
        "note": key.note,
        "expires_ms": key.expires_ms,
        "expired": key.is_over(now_ms),
    }
