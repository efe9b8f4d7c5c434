"""Hypothesis strategies: any policy that can be written, whatever it means."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from penstock.authz.polar import syntax as s
from penstock.authz.polar.parser import RESERVED

NAMES = st.sampled_from(["a", "User", "has_role", "ns::Thing", "is_ok?", "größe", "setup", "on"])
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = NAMES.map(s.Name)
strings = STRINGS.map(s.Name)

Strategy = st.SearchStrategy[Any]

values = st.one_of(
    st.builds(lambda text: s.Value("String", text), STRINGS),
    st.builds(
        lambda number: s.Value("Integer", str(number)), st.integers(-(1 << 63), (1 << 63) - 1)
    ),
    st.sampled_from([s.Value("Boolean", "true"), s.Value("Boolean", "false")]),
    st.builds(s.Value, NAMES, STRINGS),
)
variables = st.sampled_from(["x", "y", "_", "actor", "type"]).map(s.Variable)
terms = st.recursive(
    st.one_of(values, variables, st.just(s.Now())),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: s.Items(tuple(items))),
    max_leaves=4,
)


def tuples(inner: Strategy, minimum: int = 0, maximum: int = 3) -> Strategy:
    return st.lists(inner, min_size=minimum, max_size=maximum).map(tuple)


calls = st.builds(s.Call, names, tuples(terms))


def _joined(kind: Any) -> Callable[[list[Any]], Any]:
    def build(parts: list[Any]) -> Any:
        flat: list[Any] = []
        for part in parts:
            flat += part.parts if isinstance(part, kind) else [part]
        return kind(tuple(flat))

    return build


conditions = st.one_of(
    calls,
    st.booleans().map(s.Truth),
    st.builds(s.Compare, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), terms, terms),
    st.builds(s.In, terms, tuples(terms).map(s.Items)),
    st.builds(s.Matches, terms, names, st.booleans()),
)
expressions = st.recursive(
    conditions,
    lambda inner: st.one_of(
        inner.map(s.Not),
        st.lists(inner, min_size=2, max_size=3).map(_joined(s.And)),
        st.lists(inner, min_size=2, max_size=3).map(_joined(s.Or)),
    ),
    max_leaves=6,
)
steps = st.one_of(
    st.builds(lambda text, on: s.Step(text, False, on), strings, st.none() | strings),
    st.builds(lambda on: s.Step(s.Name("role"), True, on), strings),
    st.builds(lambda text: s.Step(text, False, None, True), strings),
    calls,
)
shorthands = st.recursive(
    steps,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(_joined(s.ShortAnd)),
        st.lists(inner, min_size=2, max_size=3).map(_joined(s.ShortOr)),
    ),
    max_leaves=4,
)
items = st.one_of(
    st.builds(s.Names, st.sampled_from(["roles", "permissions"]), tuples(strings)),
    st.builds(s.Relations, tuples(st.builds(s.Relation, strings, names))),
    st.builds(s.ShorthandRule, strings, st.just(False), shorthands),
    st.builds(lambda body: s.ShorthandRule(s.Name("role"), True, body), shorthands),
)
parameters = st.one_of(
    values.map(s.Parameter),
    st.builds(s.Parameter, variables, st.none() | names),
)
facts = st.builds(s.Call, names, tuples(values))
typed_variables = st.builds(s.Variable, st.just("x"), names)
parts = st.one_of(
    st.builds(s.Block, st.sampled_from(["actor", "resource"]), names, tuples(names), tuples(items)),
    st.builds(lambda body: s.Block("global", s.Name("global"), (), body), tuples(items)),
    st.builds(s.Rule, names, tuples(parameters), st.none() | expressions),
    st.builds(s.RuleType, names, tuples(parameters)),
    st.builds(s.Declare, names, tuples(names)),
    st.builds(s.InlineQuery, expressions),
    st.builds(s.Fixture, names, tuples(facts)),
    st.builds(
        s.Test,
        strings,
        tuples(st.one_of(facts, st.builds(s.UseFixture, names))),
        tuples(
            st.builds(
                s.Assertion,
                st.booleans(),
                st.builds(s.Call, names, tuples(st.one_of(terms, typed_variables))),
                st.none() | expressions,
            ),
            minimum=1,
        ),
    ),
)
policies = tuples(parts, maximum=4).map(s.Policy)

assert not RESERVED & {"a", "setup", "on"}
