"""The oracle: answers of small policies, by hand."""

import pytest

from penstock.authz.polar.check import check
from penstock.authz.polar.query import Constraint, Question, actions, authorize, rows, solve
from penstock.model.errors import OverloadedError
from support.polar import NOW_S, fact, naive, value
from support.twins.polar import Naive

WILDCARD = """
actor User {}
global { roles = ["user"]; }
resource Org {
  roles = ["member", "admin"];
  permissions = ["read", "delete"];
  "read" if "member";
  "read" if global "user";
  "delete" if "admin";
}
has_role(_: User, "user");
"""
FACTS = [
    fact("has_role", "User:alice", "member", "Org:acme"),
    fact("has_role", "User:bob", "admin", "Org:acme"),
]


def asked(actor, action, resource):
    return Question(
        (("allow", ("actor", "action", "resource")),),
        {"actor": actor, "action": action, "resource": resource},
    )


def test_every_derivation_has_its_most_general_bindings():
    program = check(WILDCARD)
    evaluator = naive(program, FACTS)
    user, org = Constraint("User"), Constraint("Org")
    bob = asked(Constraint("User", ("bob",)), Constraint("String"), org)
    assert [(row["action"], row["resource"]) for row in rows(program, evaluator, bob)] == [
        ("delete", "acme"),
        ("read", None),
    ]
    acme = asked(user, Constraint("String"), Constraint("Org", ("acme",)))
    assert [(row["actor"], row["action"]) for row in rows(program, evaluator, acme)] == [
        (None, "read"),
        ("alice", "read"),
        ("bob", "delete"),
    ]


def test_a_wildcard_is_reported_as_the_ids_that_were_asked_for():
    program = check(WILDCARD)
    question = asked(
        Constraint("User", ("zoe",)), Constraint("String", ("read",)), Constraint("Org", ("x", "y"))
    )
    assert [row["resource"] for row in rows(program, naive(program, FACTS), question)] == ["x", "y"]


def test_no_ids_give_no_rows():
    program = check(WILDCARD)
    question = asked(Constraint("User"), Constraint("String"), Constraint("Org", ()))
    assert rows(program, naive(program, FACTS), question) == []


def test_calls_are_joined_and_each_constraint_is_in_each_row():
    program = check(WILDCARD)
    question = Question(
        (("has_role", ("u", "r", "o")), ("allow", ("u", "a", "o"))),
        {
            "u": Constraint("User"),
            "r": Constraint("String", ("admin",)),
            "o": Constraint("Org"),
            "a": Constraint("String"),
            "unused": Constraint("Org"),
        },
    )
    assert rows(program, naive(program, FACTS), question) == [
        {"u": "bob", "r": "admin", "o": "acme", "a": "delete", "unused": None},
        {"u": "bob", "r": "admin", "o": "acme", "a": "read", "unused": None},
    ]


def test_unknown_types_and_predicates_have_no_answer():
    program = check(WILDCARD)
    evaluator = naive(program, FACTS)
    assert not solve(program, evaluator, authorize(value("Nope:a"), "read", value("Org:acme")))
    assert not solve(program, evaluator, Question((("nothing", ("x",)),), {"x": Constraint("Org")}))


def test_actions_of_a_type():
    program = check(WILDCARD)
    found = rows(program, naive(program, FACTS), actions(value("User:bob"), value("Org:acme")))
    assert [row["action"] for row in found] == ["delete", "read"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n < 10", {"2", "9"}),
        ("n <= 10", {"2", "9", "10"}),
        ("n > 9", {"10", "100"}),
        ("n >= 10", {"10", "100"}),
        ("n != 10", {"2", "9", "100"}),
        ("n = 10", {"10"}),
        ("n < @current_unix_time", {"2", "9", "10", "100"}),
        ("n > @current_unix_time", set()),
        ("not hidden(n)", {"9", "10", "100"}),
        ("not odd(n, _)", {"2", "10", "100"}),
        ("not not odd(n, x)", {"9"}),
    ],
)
def test_conditions_on_integers(condition, expected):
    program = check(f"declare odd(Integer, String); f(n: Integer) if number(n) and {condition};")
    facts = [fact("number", f"Integer:{n}") for n in (2, 9, 10, 100)]
    facts += [fact("hidden", "Integer:2"), fact("odd", "Integer:9", "yes")]
    question = Question((("f", ("n",)),), {"n": Constraint("Integer")})
    found = rows(program, naive(program, facts), question)
    assert {row["n"] for row in found} == expected


@pytest.mark.slow
def test_what_takes_too_many_steps_is_stopped():
    program = check("f(a: String, b: String, c: String) if g(a) and g(b) and g(c);")
    facts = [fact("g", f"s{n}") for n in range(200)]
    with pytest.raises(OverloadedError, match="too many steps"):
        Naive(program, facts, now_s=NOW_S, steps=100_000)
