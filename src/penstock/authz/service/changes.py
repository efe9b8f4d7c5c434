"""Handlers of changes: facts, the policy. Each answer has the token of its position."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final

import msgspec

from penstock.authz.polar.check import check
from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.policy_tests import run_tests
from penstock.authz.polar.program import Fact, Program, Signature, Value
from penstock.authz.polar.query import Evaluator
from penstock.authz.polar.tabled import MemoryFacts, Tabled
from penstock.authz.polar.values import check_fact
from penstock.authz.service import wire
from penstock.authz.service.call import MUTATION_HEADER, Answer, Call, answer
from penstock.authz.service.directory import Access
from penstock.authz.service.environment import Environment
from penstock.authz.service.handling import decoder
from penstock.authz.state import entries
from penstock.authz.state.entries import Clear, Delete, Done, Insert, Refused, SetPolicy, Write
from penstock.model.errors import InvalidRequestError, OverloadedError, RetryableError
from penstock.ports.clock import Clock

TESTS_S: Final = 20.0
_TRIES: Final = 5
"""How often a policy is proposed again after others were set meanwhile."""

_read_batch = decoder(list[wire.ChangesIn])
_read_fact = decoder(wire.FactIn)
_read_pattern = decoder(wire.PatternIn)
_read_facts = decoder(list[wire.FactIn])
_read_patterns = decoder(list[wire.PatternIn])
_read_bulk = decoder(wire.BulkIn)
_read_policy = decoder(wire.PolicyIn)


class Changes:
    """Applies changes. Event loop only.

    Args:
        checking: has the work of checking policies.
    """

    def __init__(self, clock: Clock, checking: Executor) -> None:
        self._clock = clock
        self._checking = checking

    # -- facts -----------------------------------------------------------------------------------

    async def batch(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /batch: one transaction."""
        changes: list[Insert | Delete] = []
        for part in _read_batch(call.body):
            changes += map(_insert, part.inserts or ())
            changes += map(_delete, part.deletes or ())
        return await self._write(environment, call, changes)

    async def insert(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /facts, the older form: answers with the fact."""
        given = _read_fact(call.body)
        done = await self._write(environment, call, [_insert(given)])
        return answer(given, headers=done.headers)

    async def delete(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """DELETE /facts, the older form."""
        return await self._write(environment, call, [_delete(_read_pattern(call.body))])

    async def load(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /bulk_load, the older form."""
        return await self._write(environment, call, list(map(_insert, _read_facts(call.body))))

    async def unload(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /bulk_delete, the older form."""
        return await self._write(environment, call, list(map(_delete, _read_patterns(call.body))))

    async def bulk(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /bulk, the older form: deletes come first."""
        given = _read_bulk(call.body)
        changes: list[Insert | Delete] = list(map(_delete, given.delete))
        changes += map(_insert, given.tell)
        return await self._write(environment, call, changes)

    async def clear(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /clear_data: deletes all facts, and keeps the policy."""
        outcome = await environment.write(Clear(_request_key(call)))
        assert isinstance(outcome, Done)
        return _changed(environment, outcome, f"deleted {outcome.changed:,} facts")

    async def _write(
        self, environment: Environment, call: Call, changes: list[Insert | Delete]
    ) -> Answer:
        if len(changes) > wire.CHANGES_MAX:
            detail = f"{len(changes):,} changes; {wire.CHANGES_MAX:,} are allowed"
            raise wire.LimitError("write", "facts", detail)
        if not changes:
            return _changed(environment, Done(environment.position, 0), "nothing to change")
        outcome = await environment.write(Write(_request_key(call), tuple(changes)))
        if isinstance(outcome, Refused):
            raise _refusal(environment, outcome, changes)
        return _changed(environment, outcome, f"changed {outcome.changed:,} facts")

    # -- the policy ------------------------------------------------------------------------------

    async def policy(self, environment: Environment, access: Access, call: Call) -> Answer:  # noqa: ARG002
        """POST /policy: parse, check, run its tests, then set it."""
        given = _read_policy(call.body)
        return await self.set_policy(
            environment, given.src, given.filename or "", request=_request_key(call)
        )

    async def set_policy(
        self, environment: Environment, source: str, filename: str, *, request: bytes = b""
    ) -> Answer:
        """Set a policy; answer 400 with what is wrong with it."""
        loop = asyncio.get_running_loop()
        now_s = self._clock.now_ms() // 1000
        checked = await loop.run_in_executor(
            self._checking, _checked, source, now_s, self._clock.monotonic_s
        )
        if isinstance(checked, dict):
            return answer(checked, 400)
        signatures = tuple(sorted((each.predicate, each.types) for each in checked.facts))
        for _ in range(_TRIES):
            environment.offer(checked)
            base = environment.policy.version
            command = SetPolicy(request, base, filename, source, signatures)
            outcome = await environment.write(command)
            if isinstance(outcome, Done):
                if outcome.changed and not outcome.repeated:
                    return _changed(environment, outcome, "policy updated")
                return _changed(environment, outcome, "policy unchanged", status=202)
            if outcome.reason == entries.FACTS_IN_USE:
                return answer(_in_use(outcome), 400)
        raise RetryableError("set", "policy", "other policies were set meanwhile", "try again")


def _checked(
    source: str, now_s: int, monotonic_s: Callable[[], float]
) -> Program | dict[str, object]:
    """Check a policy and run its tests; give what is wrong with it as the API does."""
    deadline_s = monotonic_s() + TESTS_S

    def evaluator(program: Program, facts: Iterable[Fact]) -> Evaluator:
        # Each test has a bound of steps; a policy may have thousands of tests.
        if monotonic_s() > deadline_s:
            raise OverloadedError("test", "policy", f"all tests together take over {TESTS_S:.0f} s")
        return Tabled(program, MemoryFacts(facts), now_s=now_s)

    try:
        program = check(source)
    except PolicyError as error:
        return error.as_json()
    try:
        results = run_tests(program, evaluator)
    except OverloadedError as error:
        # Of an inline query; a test that takes too long is among the results.
        return {"error_type": "Generic", "message": f"an inline query was stopped: {error.detail}"}
    return program if results.is_success else results.error_as_json()


def _in_use(outcome: Refused) -> dict[str, object]:
    named = [str(Signature(*each)) for each in outcome.signatures]
    errors = [
        {
            "error_type": "ValidationFailed",
            "message": f"facts {each} are stored, and this policy doesn't accept them: delete them "
            "first, or declare them",
        }
        for each in named
    ]
    more = outcome.number - len(named)
    shown = ", ".join(named) + (f" and {more} more kinds" if more else "")
    message = f"stored facts that this policy doesn't accept: {shown}"
    return {"error_type": "Validation", "message": message, "errors": errors}


def _refusal(
    environment: Environment, outcome: Refused, changes: list[Insert | Delete]
) -> InvalidRequestError:
    """Give the error of refused changes."""
    if outcome.reason == entries.TOO_MANY_DELETED:
        detail = f"the patterns match more than {outcome.number:,} facts"
        return wire.LimitError("delete", "facts", detail, "delete fewer at once")
    unknown = {Signature(*each) for each in outcome.signatures}
    for change in changes:
        if isinstance(change, Insert):
            values = tuple(Value(kind or "", id_ or "") for kind, id_ in change.arguments)
            fact = Fact(change.predicate, values)
            if fact.signature in unknown:
                try:
                    check_fact(environment.policy.program, fact)
                except InvalidRequestError as error:
                    return error
    # The policy that refused them isn't the newest any more.
    named = ", ".join(sorted(map(str, unknown)))
    return InvalidRequestError("check", "fact", f"the policy had no fact {named}")


def _insert(given: wire.FactIn) -> Insert:
    fact = wire.fact(given)
    return Insert(fact.predicate, tuple((each.type, each.id) for each in fact.arguments))


def _delete(given: wire.PatternIn) -> Delete:
    wire.check_pattern(given)
    return Delete(given.predicate, tuple((each.type, each.id) for each in given.args))


def _request_key(call: Call) -> bytes:
    """Recognise a repeated request: the same client, request id, and content.

    Clients whose retries have a new id are not recognised; docs/authz.md says what that means.
    """
    instance = call.headers.get("x-oso-instance-id", "")
    request = call.headers.get("x-request-id", "")
    if not instance or not request:
        return b""
    parts = msgspec.msgpack.encode([instance, request, call.method, call.path, call.body])
    return hashlib.blake2b(parts, digest_size=entries.REQUEST_KEY_BYTES).digest()


def _changed(environment: Environment, done: Done, message: str, *, status: int = 200) -> Answer:
    offset = ((MUTATION_HEADER, environment.token(done.position)),)
    return answer({"message": message}, status, offset)
