"""Compiled SQL, the tabled evaluator and the naive one give the same answers."""

import sqlite3
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.authz.facts import schema
from penstock.authz.facts.asking import Asking, Plans
from penstock.authz.polar.check import check
from penstock.authz.polar.policy_tests import run_tests
from penstock.authz.polar.query import Constraint, Question, rows
from support.examples import examples
from support.polar import NOW_S, POLICIES, compiled, fact, naive, store, tabled
from support.random_policies import random_facts, random_program, random_question

QUESTIONS = 12


def answers(random):
    """Ask random questions; yields each with its plan's reason, after all three have agreed."""
    program = random_program(random)
    stored = random_facts(random, program, random.randrange(80))
    context = random_facts(random, program, random.choice([0, 0, 3, 10]))
    everything = naive(program, [*stored, *context])
    connection = store(program, stored)
    plans = Plans(program)
    for _ in range(QUESTIONS):
        question = random_question(random, program)
        expected = rows(program, everything, question)
        by_tables = rows(program, tabled(program, [*stored, *context]), question)
        assert by_tables == expected, (program.source, stored, context, question)
        asking = Asking(plans, connection, now_s=NOW_S, context=context)
        assert rows(program, asking, question) == expected, (
            program.source,
            stored,
            context,
            question,
        )
        yield expected
    connection.close()
    yield from plans._plans.values()


@pytest.mark.slow
@settings(max_examples=examples(0.5))
@given(st.randoms(use_true_random=False))
def test_random_questions_have_one_answer(random):
    for _ in answers(random):
        pass


@pytest.mark.slow
def test_random_questions_meet_every_kind_of_plan():
    """The property above is worth something: answers aren't empty, and plans are of each kind."""
    kinds = Counter()
    for seed in range(60):
        for found in answers(Random(seed)):
            if isinstance(found, list):
                kinds["answers" if found else "none"] += 1
                kinds["any"] += any(None in row.values() for row in found)
            elif found.sql:
                kinds["calls"] += "calls" in found.sql
                kinds["bottom up"] += "answers" in found.sql
                kinds["both"] += "calls" in found.sql and "answers" in found.sql
                kinds["context"] += "json_each" in found.sql
                kinds["negation"] += "NOT EXISTS" in found.sql
                kinds["sql"] += 1
            else:
                kinds[found.reason] += 1
    assert kinds["answers"] > 100
    assert kinds["sql"] > 5 * kinds["a rule has two recursive conditions"] > 0
    for kind in ("any", "calls", "bottom up", "both", "context", "negation"):
        assert kinds[kind] > 5, kinds


@pytest.mark.parametrize("make", [naive, tabled, compiled])
@pytest.mark.parametrize("name", POLICIES)
def test_the_ten_policies_pass_their_tests_by_each(name, make):
    results = run_tests(check(POLICIES[name]), make)
    assert results.as_json()["errors"] == []


LONG = """
resource Node { relations = { next: Node }; roles = ["a"]; permissions = ["read"];
  "read" if "a"; role if role on "next"; }
actor User {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_cyclic", [False, True])
def test_a_long_chain_ends_from_both_sides(is_cyclic):
    program = check(LONG)
    facts = [fact("has_relation", f"Node:{n}", "next", f"Node:{n + 1}") for n in range(500)]
    if is_cyclic:
        facts.append(fact("has_relation", "Node:500", "next", "Node:0"))
    facts.append(fact("has_role", "User:u", "a", "Node:500"))
    free = Question(
        (("allow", ("u", "a", "n")),),
        {"u": Constraint("User", ("u",)), "a": Constraint("String"), "n": Constraint("Node")},
    )
    bound = Question(
        (("allow", ("u", "a", "n")),),
        {"u": Constraint("User"), "a": Constraint("String"), "n": Constraint("Node", ("0",))},
    )
    for evaluator in (tabled(program, facts), compiled(program, facts)):
        assert len(rows(program, evaluator, free)) == 501
        assert rows(program, evaluator, bound) == [{"u": "u", "a": "read", "n": "0"}]


def test_sql_in_ids_and_in_the_policy_is_harmless():
    hostile = "x'); DROP TABLE t; --\" ? ?1 $[0]"
    escaped = hostile.replace('"', '\\"')
    program = check(
        f'actor User {{}} resource R {{}} allow(u: User, "{escaped}", r: R) if'
        f' has_role(u, "{escaped}", r) and not is_banned(u);'
    )
    stored = [fact("has_role", f"User:{hostile}", hostile, f"R:{hostile}")]
    context = [fact("has_role", "User:\"]}'", hostile, "R:\\u0041"), fact("is_banned", "User:z")]
    question = Question(
        (("allow", ("u", "a", "r")),),
        {"u": Constraint("User"), "a": Constraint("String", (hostile,)), "r": Constraint("R")},
    )
    connection = store(program, stored)
    plans = Plans(program)
    before = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    for _ in range(2):
        asking = Asking(plans, connection, now_s=NOW_S, context=context)
        found = rows(program, asking, question)
        assert {row["u"] for row in found} == {hostile, "\"]}'"}
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == before


def test_tables_keep_names_apart_that_differ_in_case_or_in_odd_characters():
    program = check(
        "actor User {} actor user {} resource größe {} resource grö_e {}"
        ' allow(u: Actor, "x", r: Resource) if ok?(u, r);'
    )
    names = {schema.table(signature).lower() for signature in program.facts}
    assert len(names) == len(program.facts)
    facts = [fact("ok?", "User:1", "größe:1"), fact("ok?", "user:2", "grö_e:2")]
    question = Question(
        (("ok?", ("u", "r")),), {"u": Constraint("user"), "r": Constraint("Resource")}
    )
    assert rows(program, compiled(program, facts), question) == [{"u": "2", "r": "2"}]


def test_context_facts_count_in_negations():
    program = check(POLICIES["09-negation"])
    stored = [fact("has_role", "User:a", "viewer", "Folder:f")]
    question = Question(
        (("allow", ("u", "act", "f")),),
        {
            "u": Constraint("User", ("a",)),
            "act": Constraint("String", ("act",)),
            "f": Constraint("Folder", ("f",)),
        },
    )
    connection = store(program, stored)
    plans = Plans(program)
    for context, expected in (([], 1), ([fact("is_banned", "User:a")], 0)):
        asking = Asking(plans, connection, now_s=NOW_S, context=context)
        assert len(rows(program, asking, question)) == expected


def test_a_hostile_question_shape_keeps_few_plans():
    program = check(POLICIES["02-github"])
    plans = Plans(program)
    connection = store(program, [])
    for number in range(50):
        question = Question(
            (("allow", ("u", "a", "r")),),
            {
                "u": Constraint("User", (f"u{number}",)),
                "a": Constraint("String", (f"action {number}",)),
                "r": Constraint("Repository", (f"r{number}",)),
            },
        )
        assert rows(program, Asking(plans, connection, now_s=NOW_S), question) == []
    assert len(plans._plans) == 1


def test_a_tower_of_rules_is_answered_without_one_huge_statement():
    """Each level has two ways to hold: written out that would be 2^30 conditions."""
    levels = "".join(f"f{n}(x: U) if f{n + 1}(x) and (f{n + 1}(x) or g(x));" for n in range(30))
    program = check(f"actor U {{}} {levels} f30(x: U) if h(x);")
    question = Question((("f0", ("x",)),), {"x": Constraint("U", ("1",))})
    found = rows(program, compiled(program, [fact("h", "U:1"), fact("h", "U:2")]), question)
    assert found == [{"x": "1"}]


def test_sqlite_reads_statements_up_to_the_nesting_that_is_written():
    program = check(LONG)
    assert sqlite3.sqlite_version_info >= (3, 35)
    assert rows(
        program,
        compiled(program, [fact("has_role", "User:u", "a", "Node:1")]),
        Question(
            (("allow", ("u", "a", "n")),),
            {
                "u": Constraint("User", ("u",)),
                "a": Constraint("String", ("read",)),
                "n": Constraint("Node", ("1",)),
            },
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 600])
@pytest.mark.parametrize("is_recursive", [False, True])
def test_a_role_with_hundreds_of_ways_to_hold_is_answered(count, is_recursive):
    """Also where SQLite would refuse a statement of so many parts."""
    names = ", ".join(f'"r{n}"' for n in range(count))
    rules = "".join(f'"a" if "r{n}";' for n in range(count))
    flows = '"a" if "a" on "parent";' if is_recursive else ""
    program = check(
        'actor U {} resource R { permissions = ["p"]; relations = { parent: R };'
        f' roles = ["a", {names}]; "p" if "a"; {rules} {flows} }}'
    )
    facts = [
        fact("has_role", "U:u", f"r{count - 1}", "R:1"),
        fact("has_relation", "R:2", "parent", "R:1"),
    ]
    evaluator = compiled(program, facts)
    expected = ["1", "2"] if is_recursive else ["1"]
    for actor, resource, found in (("u", None, expected), (None, "1", ["u"]), ("u", "1", [None])):
        constraints = {
            "u": Constraint("U", (actor,) if actor else None),
            "a": Constraint("String", ("p",)),
            "r": Constraint("R", (resource,) if resource else None),
        }
        question = Question((("allow", ("u", "a", "r")),), constraints)
        answer = rows(program, evaluator, question)
        assert answer == rows(program, tabled(program, facts), question)
        assert len(answer) == len(found)
