"""The calls of the HTTP API: who asks, which handler answers, and what errors become."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from penstock.authz.service.admin import Admin
from penstock.authz.service.call import Answer, Call, answer, failure
from penstock.authz.service.changes import Changes
from penstock.authz.service.decisions import DecisionLog
from penstock.authz.service.directory import ADMIN, READ, WRITE, Access, Directory
from penstock.authz.service.environment import Environment
from penstock.authz.service.handling import Answering, Handler
from penstock.authz.service.local import Local
from penstock.authz.service.questions import Questions
from penstock.authz.service.watching import Watching
from penstock.authz.service.wire import LimitError
from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.ports.clock import Clock
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_OFFSET_HEADER: Final = "osooffset"
_KNOWN_HEADERS_MAX: Final = 10_000
_SHOWN: Final = 200


class Api:
    """Answers calls. Event loop only.

    Args:
        environment: gives an environment by its name.
    """

    def __init__(
        self,
        directory: Directory,
        environment: Callable[[str], Environment],
        questions: Questions,
        changes: Changes,
        admin: Admin,
        watching: Watching,
        decisions: DecisionLog | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._decisions = decisions
        self._clock = clock
        self._accesses: dict[str, Access] = {}
        """Keys by the header that had them: hashing takes longer than many a question."""
        self._accesses_of: object = None
        read, write, all_ = READ, WRITE, ADMIN
        local = Local()
        table: dict[tuple[str, str], tuple[str, Handler]] = {
            ("POST", "/api/authorize"): (read, questions.authorize),
            ("POST", "/api/list"): (read, questions.list),
            ("POST", "/api/actions"): (read, questions.actions),
            ("POST", "/api/evaluate_query"): (read, questions.evaluate),
            ("POST", "/api/authorize_resources"): (read, questions.resources),
            ("POST", "/api/query"): (read, questions.query),
            ("POST", "/api/authorize_query"): (read, local.authorize),
            ("POST", "/api/list_query"): (read, local.list),
            ("POST", "/api/actions_query"): (read, local.actions),
            ("POST", "/api/evaluate_query_local"): (read, local.evaluate),
            ("POST", "/api/explain"): (read, questions.explain),
            ("POST", "/api/expect"): (read, questions.expect),
            ("GET", "/api/watch"): (read, watching.watch),
            ("GET", "/api/facts"): (read, questions.facts),
            ("GET", "/api/stats"): (read, questions.stats),
            ("GET", "/api/policy"): (read, questions.policy),
            ("GET", "/api/policy_metadata"): (read, questions.metadata),
            ("POST", "/api/policy"): (write, changes.policy),
            ("POST", "/api/batch"): (write, changes.batch),
            ("POST", "/api/clear_data"): (write, changes.clear),
            ("POST", "/api/facts"): (write, changes.insert),
            ("DELETE", "/api/facts"): (write, changes.delete),
            ("POST", "/api/bulk_load"): (write, changes.load),
            ("POST", "/api/bulk_delete"): (write, changes.unload),
            ("POST", "/api/bulk"): (write, changes.bulk),
            ("GET", "/v1/environments"): (all_, admin.environments),
            ("POST", "/v1/environments"): (all_, admin.create_environment),
            ("GET", "/v1/keys"): (all_, admin.keys),
            ("POST", "/v1/keys"): (all_, admin.create_key),
            ("DELETE", "/v1/keys"): (all_, admin.revoke_key),
        }
        table |= {("POST", f"/api/agents/event/{event}"): (read, _event) for event in AGENT_EVENTS}
        self._table = table
        self._paths = {path for _, path in table}

    @property
    def names(self) -> list[str]:
        """The names of all calls, for metrics."""
        return sorted({path.rpartition("/")[2] for path in self._paths} | {"other"})

    def name(self, call: Call) -> str:
        """Give a call's name, for metrics."""
        return call.path.rpartition("/")[2] if call.path in self._paths else "other"

    def call(self, call: Call) -> Answering:
        """Answer a call, at once or later. Raises nothing, but for what ends the process."""
        try:
            return self._answer(call)
        except Exception as error:  # noqa: BLE001 - each is answered, and bugs are heard
            return _answer_of(error, call)

    def _answer(self, call: Call) -> Answering:
        known = self._table.get((call.method, call.path))
        if known is None:
            if call.path in self._paths:
                return failure(405, f"{call.path[:_SHOWN]} has no {call.method[:20]}")
            return failure(404, f"no call {call.path[:_SHOWN]}: docs/authz.md has the table")
        scope, handler = known
        access = self._access(call.headers.get("authorization", ""))
        if access is None:
            return failure(401, "the header Authorization has no key that is accepted here")
        if not access.allows(scope):
            return failure(403, f"this key has the scope {access.scope}; the call needs {scope}")
        environment = self._environment(access.environment)
        if self._decisions is not None and call.path in _DECISIONS:
            return self._logged(self._decisions, environment, access, call, handler)
        return self._handled(environment, access, call, handler)

    def _logged(
        self,
        log: DecisionLog,
        environment: Environment,
        access: Access,
        call: Call,
        handler: Handler,
    ) -> Answering:
        """Answer a question, and have it logged."""
        assert self._clock is not None
        since_s = self._clock.monotonic_s()

        def state() -> tuple[str, int]:
            return environment.token(environment.position), environment.policy.version

        found = self._handled(environment, access, call, handler)
        return log.follow(found, call, environment.name, access.number, state, since_s)

    def _handled(
        self, environment: Environment, access: Access, call: Call, handler: Handler
    ) -> Answering:
        token = call.headers.get(_OFFSET_HEADER)
        if token is not None and not environment.is_reached(token):
            waited = _after(environment, token, lambda: handler(environment, access, call))
            return _guarded(waited, environment, call)
        found = handler(environment, access, call)
        return found if isinstance(found, Answer) else _guarded(found, environment, call)

    def _access(self, header: str) -> Access | None:
        accesses = self._directory.version
        if accesses != self._accesses_of:
            self._accesses.clear()
            self._accesses_of = accesses
        access = self._accesses.get(header)
        if access is None:
            kind, _, key = header.partition(" ")
            if kind.lower() != "bearer":
                return None
            access = self._directory.access(key.strip())
            if access is not None and len(self._accesses) < _KNOWN_HEADERS_MAX:
                self._accesses[header] = access
        return access


_DECISIONS: Final = frozenset(
    f"/api/{name}"
    for name in ("authorize", "authorize_resources", "list", "actions", "evaluate_query", "query")
)
AGENT_EVENTS: Final = (
    "tool_call_request",
    "tool_call_response",
    "tool_call_error",
    "message_from_user",
    "message_to_user",
)


def _event(environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG001
    """POST /agents/event/...: read, and kept nowhere."""
    try:
        msgspec.json.decode(call.body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("read", "body", f"the body isn't valid: {error}") from error
    return answer({"message": "received"})


async def _after(environment: Environment, token: str, handle: Callable[[], Answering]) -> Answer:
    await environment.reach(token)
    found = handle()
    return found if isinstance(found, Answer) else await found


async def _guarded(found: Awaitable[Answer], environment: Environment, call: Call) -> Answer:
    environment.user_count += 1
    try:
        return await found
    except Exception as error:  # noqa: BLE001 - each is answered, and bugs are heard
        return _answer_of(error, call)
    finally:
        environment.user_count -= 1


def _answer_of(error: Exception, call: Call) -> Answer:
    """Give the answer of an error: what the caller can do about it decides the status."""
    if not isinstance(error, PenstockError):
        heard(Cause.AUTHZ_CALL, error, logger, f"{call.method} {call.path} failed", logging.ERROR)
        return failure(500, f"{type(error).__name__} in this server; its log has the traceback")
    text = f"{error.detail}; {error.hint}" if error.hint else error.detail
    match error:
        case LimitError():
            return failure(413, text)
        case NotFoundError():
            return failure(404, text)
        case InvalidRequestError() | ConflictError():
            return failure(400, text)
        case RetryableError():
            return failure(503, text, (("Retry-After", "1"),))
        case _:
            heard(Cause.AUTHZ_CALL, error, logger, f"{call.method} {call.path} failed")
            return failure(500, text)
