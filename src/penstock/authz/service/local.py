"""Handlers of local authorization: SQL that a customer runs in a database of their own."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from penstock.authz.facts import schema
from penstock.authz.facts.asking import Asking
from penstock.authz.polar.graph import Graph
from penstock.authz.polar.local import (
    COMBINATIONS_MAX,
    Bindings,
    LocalPlan,
    Possible,
    plans,
)
from penstock.authz.polar.local_sql import is_column
from penstock.authz.polar.program import Fact, Program, Signature
from penstock.authz.polar.query import (
    Constraint,
    Question,
    actions,
    authorize,
    list_resources,
)
from penstock.authz.service import wire
from penstock.authz.service.bindings import read_bindings
from penstock.authz.service.call import Call, answer
from penstock.authz.service.directory import Access
from penstock.authz.service.environment import Environment, Policy
from penstock.authz.service.handling import Answering, decoder, then
from penstock.model.errors import InvalidRequestError

FACTS_MAX: Final = 10_000
"""Facts that one statement has as literals."""
_LOOK_UPS_MAX: Final = 200
ALL: Final = "*"


class AuthorizeSql(msgspec.Struct, frozen=True):
    """The body of POST /authorize_query."""

    query: wire.AuthorizeIn
    data_bindings: str | None = None


class ListSql(msgspec.Struct, frozen=True):
    """The body of POST /list_query."""

    query: wire.ListIn
    column: str
    data_bindings: str | None = None


class ActionsSql(msgspec.Struct, frozen=True):
    """The body of POST /actions_query."""

    query: wire.ActionsIn
    data_bindings: str | None = None


class Select(msgspec.Struct, frozen=True, tag_field="mode", tag="select"):
    """Rows of variables; without any, one row that says whether there is an answer."""

    query_vars_to_output_column_names: dict[str, str]


class Filter(msgspec.Struct, frozen=True, tag_field="mode", tag="filter"):
    """A condition on a column."""

    query_var: str
    output_column_name: str


class EvaluateSql(msgspec.Struct, frozen=True):
    """The body of POST /evaluate_query_local."""

    query: wire.EvaluateIn
    mode: Select | Filter
    data_bindings: str | None = None


_read_authorize = decoder(AuthorizeSql)
_read_list = decoder(ListSql)
_read_actions = decoder(ActionsSql)
_read_evaluate = decoder(EvaluateSql)


class Local:
    """Writes SQL. Event loop only, but for what a thread is asked."""

    def authorize(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /authorize_query: one row with `allowed`."""
        given = _read_authorize(call.body)
        query = given.query
        question = authorize(
            wire.value(query.actor_type, query.actor_id),
            wire.value("String", query.action).id,
            wire.value(query.resource_type, query.resource_id),
        )

        def write(writing: _Writing) -> str:
            return f"SELECT {writing.test(question)} AS allowed"

        return _written(environment, given.data_bindings, query.context_facts, write)

    def list(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /list_query: a condition on a column."""
        given = _read_list(call.body)
        query = given.query
        question = list_resources(
            wire.value(query.actor_type, query.actor_id),
            wire.value("String", query.action).id,
            query.resource_type,
        )
        _check_column(given.column)
        return _written(
            environment,
            given.data_bindings,
            query.context_facts,
            lambda writing: writing.condition(question, "resource", given.column),
        )

    def actions(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /actions_query: rows of `actions`."""
        given = _read_actions(call.body)
        query = given.query
        question = actions(
            wire.value(query.actor_type, query.actor_id),
            wire.value(query.resource_type, query.resource_id),
        )

        def write(writing: _Writing) -> str:
            rows = writing.rows(question, ["action"])
            every = writing.bindings.dialect.literal(ALL)
            return f"SELECT coalesce(v0, {every}) AS actions FROM ({rows}) AS penstockrows"  # noqa: S608

        return _written(environment, given.data_bindings, query.context_facts, write)

    def evaluate(self, environment: Environment, access: Access, call: Call) -> Answering:  # noqa: ARG002
        """POST /evaluate_query_local: rows, a test, or a condition on a column."""
        given = _read_evaluate(call.body)
        question = wire.question(given.query)
        mode = given.mode
        names = (
            list(mode.query_vars_to_output_column_names)
            if isinstance(mode, Select)
            else [mode.query_var]
        )
        for name in names:
            if name not in question.constraints:
                raise InvalidRequestError(
                    "write", "local SQL", f"the query has no variable {name[:50]!r}"
                )
        columns = (
            list(mode.query_vars_to_output_column_names.values())
            if isinstance(mode, Select)
            else [mode.output_column_name]
        )
        for column in columns:
            _check_column(column)
        if len(set(columns)) < len(columns):
            raise InvalidRequestError("write", "local SQL", "two variables have the same column")

        def write(writing: _Writing) -> str:
            if isinstance(mode, Filter):
                return writing.condition(question, mode.query_var, mode.output_column_name)
            if not names:
                return f"SELECT {writing.test(question)} AS result"
            rows = writing.rows(question, names)
            outputs = ", ".join(f"v{place} AS {column}" for place, column in enumerate(columns))
            return f"SELECT {outputs} FROM ({rows}) AS penstockrows"  # noqa: S608

        return _written(environment, given.data_bindings, given.query.context_facts, write)


class _Central:
    """Implements `CentralFacts`: stored facts, and the call's context. In a thread."""

    def __init__(self, asking: Asking, context: Iterable[Fact]) -> None:
        self._asking = asking
        self._context = tuple(context)
        self._left = FACTS_MAX

    def rows(self, signature: Signature, possible: Possible) -> list[tuple[str, ...]]:
        """See `CentralFacts`. Raises: LimitError: they are too many."""
        counts = [(len(ids), place) for place, ids in enumerate(possible) if ids is not None]
        count, place = min(counts, default=(_LOOK_UPS_MAX + 1, 0))
        looked_up: list[tuple[str, ...]] = []
        if count > _LOOK_UPS_MAX:
            looked_up = self._selected(signature, [], [])
        else:
            for id_ in sorted(possible[place] or ()):
                looked_up += self._selected(signature, [place], [id_])
        looked_up += [fact.ids for fact in self._context if fact.signature == signature]
        found = {row: None for row in looked_up if _may_be(row, possible)}
        self._left -= len(found)
        if self._left < 0:
            raise self._too_many()
        return list(found)

    def _selected(
        self, signature: Signature, bound: list[int], values: list[str]
    ) -> list[tuple[str, ...]]:
        if signature not in self._asking.program.facts:
            return []
        sql = f"{schema.select(signature, bound)} LIMIT {FACTS_MAX + 1}"
        found = list(self._asking.stored(sql, values))
        if len(found) > FACTS_MAX:
            raise self._too_many()
        return found if signature.types else [() for _ in found]

    def _too_many(self) -> wire.LimitError:
        detail = f"more than {FACTS_MAX:,} facts would be literals of it"
        return wire.LimitError("write", "local SQL", detail, "bind more facts to local data")


class _Writing:
    """Writes the parts of one statement. In a thread."""

    def __init__(self, program: Program, bindings: Bindings, central: _Central) -> None:
        self.bindings = bindings
        self._program = program
        self._graph = Graph(program)
        self._central = central

    def plans(self, question: Question) -> list[LocalPlan]:
        """Write the statements of a question of one id at most for each variable."""
        return plans(self._program, self._graph, question, self.bindings, self._central)

    def test(self, question: Question) -> str:
        """Write a condition that there is an answer."""
        found = [plan for each in _single(question) for plan in self.plans(each)]
        return f"({' OR '.join(f'EXISTS ({plan.sql})' for plan in found) or '1 = 0'})"

    def condition(self, question: Question, variable: str, column: str) -> str:
        """Write a condition that a column has one of a variable's values."""
        text = self.bindings.dialect.text(column)
        rows = self.rows(question, [variable])
        terms = [f"{text} IN (SELECT v0 FROM ({rows}) AS penstockrows)"]  # noqa: S608
        # A row without a value is for any.
        terms.append(f"EXISTS (SELECT 1 FROM ({rows}) AS penstockrows WHERE v0 IS NULL)")  # noqa: S608
        return f"({' OR '.join(terms)})"

    def rows(self, question: Question, names: list[str]) -> str:
        """Write the rows of some variables, as columns v0, v1, ..."""
        dialect = self.bindings.dialect
        selects = []
        for each in _single(question):
            constraints = list(each.constraints.items())
            places = [list(each.constraints).index(name) for name in names]
            for plan in self.plans(each):
                outputs = []
                for number, place in enumerate(places):
                    ids = constraints[place][1].ids
                    if ids is not None:
                        outputs.append(f"{dialect.literal(ids[0])} AS v{number}")
                    else:
                        outputs.append(f"f{plan.columns.index(place)} AS v{number}")
                columns = ", ".join(f"f{number}" for number in range(max(1, len(plan.columns))))
                selects.append(
                    f"SELECT {', '.join(outputs)} FROM ({plan.sql}) AS penstockplan ({columns})"  # noqa: S608
                )
        nulls = ", ".join(f"{dialect.null} AS v{number}" for number in range(len(names)))
        return " UNION ".join(selects) or f"SELECT {nulls} WHERE 1 = 0"


def _written(
    environment: Environment,
    bindings_text: str | None,
    context_facts: "list[wire.FactIn]",
    write: Callable[[_Writing], str],
) -> Answering:
    bindings = read_bindings(bindings_text)
    context = wire.context(environment.policy.program, context_facts)

    def ask(policy: Policy, asking: Asking) -> str:
        for each in bindings.facts:
            signature = Signature(each.predicate, each.types)
            if signature not in policy.program.facts:
                detail = f"data bindings: the policy has no fact {str(signature)[:200]}"
                raise InvalidRequestError("read", "data bindings", detail)
        return write(_Writing(policy.program, bindings, _Central(asking, context)))

    # Many facts may have to be read.
    return then(environment.ask(ask, context, is_long=True), lambda sql: answer({"sql": sql}))


def _single(question: Question) -> Iterator[Question]:
    """Give a question once for each of the ids that its variables may have."""
    names = list(question.constraints)
    choices: list[list[tuple[str, ...] | None]] = [
        [None] if each.ids is None else [(id_,) for id_ in each.ids]
        for each in question.constraints.values()
    ]
    if math.prod(map(len, choices)) > COMBINATIONS_MAX:
        detail = f"more than {COMBINATIONS_MAX:,} combinations of ids"
        raise wire.LimitError("write", "local SQL", detail)
    for chosen in itertools.product(*choices):
        yield Question(
            question.calls,
            {
                name: Constraint(question.constraints[name].type, ids)
                for name, ids in zip(names, chosen, strict=True)
            },
        )


def _may_be(row: tuple[str, ...], possible: Possible) -> bool:
    return all(ids is None or id_ in ids for id_, ids in zip(row, possible, strict=True))


def _check_column(column: str) -> None:
    """Check what is pasted into SQL as it is. Raises: InvalidRequestError."""
    if not is_column(column):
        detail = f"{column[:100]!r} isn't a column: NAME, or TABLE.NAME, perhaps in quotes"
        raise InvalidRequestError("write", "local SQL", detail)
