"""Plans are kept by shape, and what has no plan is looked up in the same tables."""

import pytest

from penstock.authz.facts.asking import PLANS_MAX, Asking, Plans, StoredFacts
from penstock.authz.polar.check import check
from penstock.authz.polar.query import Constraint, Question, authorize, list_resources, rows, solve
from support.polar import NOW_S, POLICIES, fact, store, value

NON_LINEAR = """
actor User {}
knows(x: User, y: User) if met(x, y);
knows(x: User, y: User) if knows(x, z) and knows(z, y);
"""


def test_one_plan_serves_all_values_of_a_shape_and_each_action_has_its_own():
    program = check(POLICIES["01-tenants"])
    plans = Plans(program)
    connection = store(program, [fact("has_role", "User:a", "member", "Organization:o")])
    asking = Asking(plans, connection, now_s=NOW_S)
    for user, action, expected in [
        ("a", "read", True),
        ("b", "read", False),
        ("a", "add_member", False),
        ("a", "nothing", False),
        ("a", "no such", False),
    ]:
        question = authorize(value(f"User:{user}"), action, value("Organization:o"))
        assert bool(solve(program, asking, question)) == expected
    assert len(plans._plans) == 3


@pytest.mark.slow
def test_plans_are_bounded():
    names = ", ".join(f'"a{n}"' for n in range(PLANS_MAX + 50))
    program = check(
        f'actor User {{}} resource R {{ roles = [{names}]; permissions = ["p"]; }}'
        + "".join(f'g(x: User) if has_role(x, "a{n}", r) and r matches R;' for n in range(3))
    )
    plans = Plans(program)
    plans._constants = frozenset(f"a{n}" for n in range(PLANS_MAX + 50))
    asking = Asking(plans, store(program, []), now_s=NOW_S)
    for number in range(PLANS_MAX + 50):
        question = authorize(value("User:u"), f"a{number}", value("R:r"))
        solve(program, asking, question)
    assert len(plans._plans) == PLANS_MAX


def test_recursion_through_two_conditions_goes_to_the_tabled_evaluator():
    program = check(NON_LINEAR)
    plans = Plans(program)
    stored = [fact("met", "User:a", "User:b"), fact("met", "User:b", "User:c")]
    context = [fact("met", "User:c", "User:a")]
    connection = store(program, stored)
    question = Question(
        (("knows", ("x", "y")),), {"x": Constraint("User", ("a",)), "y": Constraint("User")}
    )
    found = rows(program, Asking(plans, connection, now_s=NOW_S, context=context), question)
    assert [row["y"] for row in found] == ["a", "b", "c"]
    (plan,) = plans._plans.values()
    assert (plan.sql, plan.reason) == ("", "a rule has two recursive conditions")


@pytest.mark.parametrize("known", [("a", None), (None, "b"), (None, None), ("a", "b")])
def test_stored_facts_are_found_by_what_is_known(known):
    program = check(NON_LINEAR)
    connection = store(program, [fact("met", "User:a", "User:b")])
    (signature,) = program.facts - {s for s in program.facts if s.predicate != "met"}
    source = StoredFacts(connection, program.facts, [fact("met", "User:a", "User:b")])
    assert list(source.lookup(signature, known)) == [("a", "b")] * 2


def test_authorize_and_ids_answer_as_rows_do():
    program = check(POLICIES["06-public"])
    stored = [
        fact("is_public", "Repository:open"),
        fact("has_role", "User:a", "member", "Repository:closed"),
    ]
    connection = store(program, stored)
    plans = Plans(program)
    context = [fact("is_public", "Repository:here")]
    asking = Asking(plans, connection, now_s=NOW_S, context=context)
    for actor, expected in (("a", {"open", "closed", "here"}), ("b", {"open", "here"})):
        for repository in ("open", "closed", "here", "other"):
            resource = value(f"Repository:{repository}")
            allowed = asking.authorize(value(f"User:{actor}"), "read", resource)
            assert allowed == (repository in expected)
        question = list_resources(value(f"User:{actor}"), "read", "Repository")
        assert asking.ids(question) == sorted(expected)
        assert [row["resource"] for row in asking.rows(question)] == sorted(expected)
    anybody = Question(
        (("allow", ("u", "a", "r")),),
        {
            "u": Constraint("User"),
            "a": Constraint("String", ("read",)),
            "r": Constraint("Repository", ("open",)),
        },
    )
    assert asking.ids(anybody) == [None]


def test_authorize_goes_to_the_tabled_evaluator_too():
    program = check(
        NON_LINEAR + 'allow(x: User, "greet", y: User) if knows(x, y) and @current_unix_time > 5;'
    )
    stored = [fact("met", "User:a", "User:b"), fact("met", "User:b", "User:c")]
    asking = Asking(Plans(program), store(program, stored), now_s=NOW_S)
    assert asking.authorize(value("User:a"), "greet", value("User:c"))
    assert not asking.authorize(value("User:c"), "greet", value("User:a"))
