"""Handlers of questions: authorize, list, actions, the query builder, and stored facts."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from penstock.authz.facts import schema
from penstock.authz.facts.asking import Asking, StoredFacts
from penstock.authz.polar.explain import explain
from penstock.authz.polar.program import Signature
from penstock.authz.polar.query import (
    Constraint,
    Question,
    actions,
    authorize,
    list_resources,
    solve,
    values_of,
)
from penstock.authz.service import wire
from penstock.authz.service.call import Answer, Call, answer
from penstock.authz.service.directory import Access
from penstock.authz.service.environment import Environment, Policy
from penstock.authz.service.handling import Answering, decoder, then
from penstock.authz.service.lists import Lists
from penstock.authz.state.environment import matching
from penstock.model.errors import InvalidRequestError
from penstock.ports.clock import Clock

FACTS_MAX: Final = 100_000
"""Facts that one GET gives."""
RESOURCES_MAX: Final = 10_000
DECISIONS_KEPT: Final = 10_000
_SHORT_CALLS_MAX: Final = 3
_FIELDS_MAX: Final = 64
_ARGUMENT: Final = re.compile(r"args\.([0-9]{1,3})\.(type|id)", re.ASCII)
_TRUE: Final = b'{"allowed":true}'
_FALSE: Final = b'{"allowed":false}'

_encode = msgspec.json.Encoder().encode
_read_authorize = decoder(wire.AuthorizeIn)
_read_list = decoder(wire.ListIn)
_read_actions = decoder(wire.ActionsIn)
_read_evaluate = decoder(wire.EvaluateIn)
_read_resources = decoder(wire.ResourcesIn)
_read_query = decoder(wire.QueryIn)
_read_expect = decoder(wire.ExpectIn)


class Questions:
    """Answers questions. Event loop only.

    Args:
        instance: this process's name in tokens of pages.
        compared: is called with whether a client's own decision was the same (`expect`).
    """

    def __init__(self, clock: Clock, instance: str, compared: Callable[[bool], None]) -> None:
        self._clock = clock
        self._lists = Lists(instance)
        self._compared = compared
        self._decisions: OrderedDict[tuple[str, str], bool] = OrderedDict()
        """Decisions by environment and request, for `expect`."""

    def authorize(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /authorize."""
        given = _read_authorize(call.body)
        actor = wire.value(given.actor_type, given.actor_id)
        resource = wire.value(given.resource_type, given.resource_id)
        action = wire.value("String", given.action).id
        facts = wire.context(environment.policy.program, given.context_facts)
        request_id = call.headers.get("x-request-id")

        def decided(allowed: bool) -> Answer:  # noqa: FBT001 - it is a value here
            if request_id:
                self._decisions[environment.name, request_id] = allowed
                if len(self._decisions) > DECISIONS_KEPT:
                    self._decisions.popitem(last=False)
            return Answer(200, _TRUE if allowed else _FALSE)

        return then(environment.authorize(actor, action, resource, facts), decided)

    def resources(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /authorize_resources: keeps order and repetitions."""
        given = _read_resources(call.body)
        actor = wire.value(given.actor_type, given.actor_id)
        action = wire.value("String", given.action).id
        if len(given.resources) > RESOURCES_MAX:
            detail = f"{len(given.resources):,} resources; {RESOURCES_MAX:,} are allowed"
            raise wire.LimitError("check", "resources", detail)
        resources = [wire.value(each.type, each.id) for each in given.resources]
        facts = wire.context(environment.policy.program, given.context_facts)

        def ask(_: Policy, asking: Asking) -> bytes:
            found = [each for each in resources if asking.authorize(actor, action, each)]
            return _encode({"results": [{"type": each.type, "id": each.id} for each in found]})

        return then(environment.ask(ask, facts), _ok)

    def list(self, environment: Environment, access: Access, call: Call) -> Answering:
        """POST /list: all ids at one position, in pages of `page_size`."""
        given = _read_list(call.body)
        actor = wire.value(given.actor_type, given.actor_id)
        action = wire.value("String", given.action).id
        if given.page_size is not None and given.page_size < 1:
            raise InvalidRequestError(
                "list", "page", f"page_size is {given.page_size}, not 1 or more"
            )
        now_s = self._clock.monotonic_s()
        same = (actor, action, given.resource_type, given.context_facts)
        asked = hashlib.blake2b(_encode([environment.name, same]), digest_size=16).digest()
        if given.page_token is not None:
            return _page(self._lists.following(access.number, asked, given.page_token, now_s))
        facts = wire.context(environment.policy.program, given.context_facts)
        question = list_resources(actor, action, given.resource_type)

        def paged(ids: list[str | None]) -> Answer:
            if ids and ids[0] is None:
                return _page((["*"], None))
            known = [id_ for id_ in ids if id_ is not None]
            if given.page_size is None:
                return _page((known, None))
            return _page(self._lists.first(access.number, asked, known, given.page_size, now_s))

        return then(environment.ask(lambda _, asking: asking.ids(question), facts), paged)

    def actions(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /actions."""
        given = _read_actions(call.body)
        actor = wire.value(given.actor_type, given.actor_id)
        resource = wire.value(given.resource_type, given.resource_id)
        facts = wire.context(environment.policy.program, given.context_facts)
        question = actions(actor, resource)

        def ask(_: Policy, asking: Asking) -> bytes:
            return _encode(
                {"results": ["*" if id_ is None else id_ for id_ in asking.ids(question)]}
            )

        return then(environment.ask(ask, facts), _ok)

    def evaluate(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /evaluate_query: the query builder's rows; null is any value."""
        given = _read_evaluate(call.body)
        question = wire.question(given)
        facts = wire.context(environment.policy.program, given.context_facts)

        def ask(_: Policy, asking: Asking) -> bytes:
            return _encode({"results": asking.rows(question)})

        # To type many calls may take longer than the event loop should be held.
        is_long = len(question.calls) > _SHORT_CALLS_MAX
        return then(environment.ask(ask, facts, is_long=is_long), _ok)

    def query(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /query, the older form: facts that hold and match a pattern."""
        given = _read_query(call.body)
        wire.check_pattern(given.fact)
        facts = wire.context(environment.policy.program, given.context_facts)
        names = tuple(f"a{place}" for place in range(len(given.fact.args)))
        constraints = {
            name: Constraint(each.type, None if each.id is None else (each.id,))
            for name, each in zip(names, given.fact.args, strict=True)
        }
        predicate = given.fact.predicate
        question = Question(((predicate, names),), constraints)

        def ask(policy: Policy, asking: Asking) -> bytes:
            found = sorted(solve(policy.program, asking, question, policy.ready.queries))
            results = [
                wire.fact_out(
                    predicate,
                    tuple(each.type for each in row),
                    tuple(each.id or None for each in row),
                )
                for row in found
            ]
            return _encode({"results": results})

        return then(environment.ask(ask, facts), _ok)

    def facts(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /facts: the stored facts that match; missing arguments are any."""
        predicate, types, ids = _pattern(call.query)

        def ask(policy: Policy, asking: Asking) -> bytes:
            found: list[dict[str, object]] = []
            bound = [place for place, id_ in enumerate(ids) if id_ is not None]
            given = [id_ for id_ in ids if id_ is not None]
            for signature in matching(policy.program.facts, predicate, types, is_prefix=True):
                for row in asking.stored(schema.select(signature, bound), given):
                    if len(found) >= FACTS_MAX:
                        detail = f"more than {FACTS_MAX:,} facts match"
                        raise wire.LimitError("get", "facts", detail, "give more arguments")
                    known = row if signature.types else ()
                    found.append(wire.fact_out(predicate, signature.types, known))
            return _encode(found)

        return then(environment.ask(ask), _ok)

    def stats(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /stats: how many facts there are."""

        def ask(policy: Policy, asking: Asking) -> bytes:
            counts: dict[str, int] = {}
            for signature in policy.program.facts:
                sql = f"SELECT count(*) FROM {schema.table(signature)}"  # noqa: S608
                ((count,),) = asking.stored(sql, ())
                counts[signature.predicate] = counts.get(signature.predicate, 0) + count
            return _encode(
                {
                    "num_roles": counts.get("has_role", 0),
                    "num_relations": counts.get("has_relation", 0),
                    "num_facts": sum(counts.values()),
                }
            )

        return then(environment.ask(ask), _ok)

    def metadata(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /policy_metadata."""
        return answer({"metadata": {"resources": environment.policy.program.metadata}})

    def policy(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """GET /policy."""
        found = environment.policy
        if not found.version:
            return answer({"policy": None})
        return answer({"policy": {"filename": found.filename or None, "src": found.source}})

    def expect(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /expect: compare a client's own decision with the one that a request was given."""
        given = _read_expect(call.body)
        decided = self._decisions.get((environment.name, given.request_id))
        offset = (("OsoOffset", environment.token(environment.position)),)
        if decided is None:
            text = "no decision of this request is kept; nothing was compared"
            return answer({"message": text}, headers=offset)
        self._compared(decided == given.expected)
        text = "the decisions are the same" if decided == given.expected else "the decisions differ"
        return answer({"message": text}, headers=offset)

    def explain(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /explain, which is Penstock's own: why is it allowed, or what would allow it?"""
        given = _read_authorize(call.body)
        actor = wire.value(given.actor_type, given.actor_id)
        resource = wire.value(given.resource_type, given.resource_id)
        question = authorize(actor, wire.value("String", given.action).id, resource)
        facts = wire.context(environment.policy.program, given.context_facts)
        now_s = self._clock.now_ms() // 1000

        def ask(policy: Policy, asking: Asking) -> bytes:
            program = policy.program
            source: StoredFacts = asking.facts()
            found: dict[str, object] = {
                "allowed": False,
                "suggestions": [],
                "failures": [],
                "complete": True,
            }
            values = values_of(question)
            for query in policy.ready.queries(program, question):
                explained = explain(program, source, query, values, now_s=now_s)
                if explained.derivation is not None:
                    tree = [each.as_json(program) for each in explained.derivation]
                    return _encode({"allowed": True, "because": tree})
                found = {
                    "allowed": False,
                    "suggestions": [
                        [wire.fact_out(*_parts(each.signature, each.ids)) for each in suggestion]
                        for suggestion in explained.suggestions
                    ],
                    "failures": [each.text for each in explained.failures],
                    "complete": explained.is_complete,
                }
            return _encode(found)

        return then(environment.ask(ask, facts, is_long=True), _ok)


def _parts(
    signature: Signature, ids: tuple[str, ...]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return signature.predicate, signature.types, ids


def _ok(body: bytes) -> Answer:
    return Answer(200, body)


def _page(page: tuple[list[str], str | None]) -> Answer:
    return answer({"results": page[0], "next_page_token": page[1]})


def _pattern(query: str) -> tuple[str, list[str | None], list[str | None]]:
    """Read the query string of GET /facts: predicate, types and ids."""
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise InvalidRequestError("get", "facts", "the query string has too many fields") from error
    predicate = fields.get("predicate", "")
    if not predicate:
        raise InvalidRequestError("get", "facts", "the query string has no predicate")
    places: dict[int, wire.PatternValue] = {}
    for name, text in fields.items():
        match = _ARGUMENT.fullmatch(name)
        if match is None:
            continue
        place = int(match[1])
        if place >= wire.ARGUMENTS_MAX:
            detail = f"{name}: a fact has at most {wire.ARGUMENTS_MAX} arguments"
            raise InvalidRequestError("get", "facts", detail)
        places[place] = msgspec.structs.replace(
            places.get(place, wire.PatternValue()), **{match[2]: text}
        )
    args = [places.get(place, wire.PatternValue()) for place in range(max(places, default=-1) + 1)]
    wire.check_pattern(wire.PatternIn(predicate, args))
    return predicate, [each.type for each in args], [each.id for each in args]
