"""Why a question is allowed or denied."""

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.authz.polar.check import check
from penstock.authz.polar.explain import FACTS_MAX, SETS_MAX, explain, shown
from penstock.authz.polar.query import authorize, queries, values_of
from penstock.authz.polar.tabled import MemoryFacts
from support.examples import examples
from support.polar import NOW_S, POLICIES, fact, naive, value
from support.random_policies import random_facts, random_program, random_question


def why(name, facts, actor, action, resource, **options):
    program = check(POLICIES[name])
    question = authorize(value(actor), action, value(resource))
    (query,) = queries(program, question)
    source = MemoryFacts(facts)
    return explain(program, source, query, values_of(question), now_s=NOW_S, **options)


def lines(derivation, depth=0):
    yield "  " * depth + shown(derivation.signature, derivation.row)
    for part in derivation.body:
        yield from lines(part, depth + 1)


def suggested(explanation):
    return {
        frozenset(shown(each.signature, each.ids) for each in facts)
        for facts in explanation.suggestions
    }


TREE = [
    fact("has_relation", "Folder:b", "parent", "Folder:a"),
    fact("has_relation", "Folder:a", "parent", "Folder:b"),
    fact("has_role", "User:u", "owner", "Folder:a"),
]


def test_allowed_is_the_shallowest_derivation():
    (derivation,) = why("03-folders", TREE, "User:u", "write", "Folder:b").derivation
    assert list(lines(derivation)) == [
        'allow(User{"u"}, "write", Folder{"b"})',
        '  has_permission(User{"u"}, "write", Folder{"b"})',
        '    has_role(User{"u"}, "owner", Folder{"b"})',
        '      has_relation(Folder{"b"}, "parent", Folder{"a"})',
        '      has_role(User{"u"}, "owner", Folder{"a"})',
    ]


def test_a_derivation_as_data_names_lines_of_the_policy():
    program = check(POLICIES["03-folders"])
    explanation = why("03-folders", TREE, "User:u", "write", "Folder:a")
    found = explanation.derivation[0].as_json(program)
    assert (found["predicate"], found["line"]) == ("allow", None)
    (permission,) = found["because"]
    line = program.source.splitlines()[permission["line"] - 1]
    assert line.strip() == '"write" if "owner";'
    assert permission["because"] == [
        {
            "predicate": "has_role",
            "args": [
                {"type": "User", "id": "u"},
                {"type": "String", "id": "owner"},
                {"type": "Folder", "id": "a"},
            ],
            "fact": True,
        }
    ]


def test_denied_suggests_facts_that_would_allow_it():
    facts = [fact("has_relation", "Repository:r", "organization", "Organization:o")]
    explanation = why("02-github", facts, "User:u", "push", "Repository:r")
    assert explanation.derivation is None
    assert explanation.is_complete
    assert suggested(explanation) == {
        frozenset([text])
        for text in (
            'has_permission(User{"u"}, "push", Repository{"r"})',
            'has_role(User{"u"}, "maintainer", Repository{"r"})',
            'has_role(User{"u"}, "admin", Repository{"r"})',
            'has_role(User{"u"}, "admin", Organization{"o"})',
        )
    }


def test_denied_may_need_two_facts():
    explanation = why(
        "10-others",
        [fact("has_role", "User:alice", "reader", "Repository:r")],
        "User:sue",
        "read",
        "Repository:r",
    )
    assert {frozenset(['has_role(User{"sue"}, "reader", Repository{"r"})'])} <= suggested(
        explanation
    )


def test_denied_says_which_negation_or_comparison_failed():
    facts = [fact("has_role", "User:u", "viewer", "Folder:f"), fact("is_banned", "User:u")]
    explanation = why("09-negation", facts, "User:u", "act", "Folder:f")
    assert [each.text for each in explanation.failures] == ['not is_banned(User{"u"})']
    facts = [fact("has_role_with_expiry", "User:u", "member", "Repository:r", "Integer:5")]
    explanation = why("08-expiry", facts, "User:u", "read", "Repository:r")
    assert [each.text for each in explanation.failures] == [
        f"expiry (5) > @current_unix_time ({NOW_S})"
    ]


def test_a_budget_that_ends_is_said():
    explanation = why("02-github", [], "User:u", "push", "Repository:r", goals=3)
    assert not explanation.is_complete


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_explaining_is_bounded(name):
    random = Random(1)
    program = check(POLICIES[name])
    facts = random_facts(random, program, 200)
    started = time.process_time()
    explanation = why(name, facts, "User:1", "read", f"{min(_resources(program))}:1")
    assert len(explanation.suggestions) <= SETS_MAX
    assert time.process_time() - started < 10


def _resources(program):
    return {s.types[2] for s in program.clauses if s.predicate == "allow" and s.types[0] == "User"}


def _check_tree(derivation, facts, above=()):
    goal = (derivation.signature, derivation.row)
    assert goal not in above
    if derivation.clause is None:
        assert any(f.signature == goal[0] and f.ids == goal[1] for f in facts)
    for part in derivation.body:
        _check_tree(part, facts, (*above, goal))


@pytest.mark.slow
@settings(max_examples=examples(0.1))
@given(st.randoms(use_true_random=False))
def test_explanations_agree_with_the_oracle(random):
    """An allowed question has a tree of facts without cycles; each suggestion does allow it."""
    program = random_program(random)
    facts = random_facts(random, program, random.randrange(40))
    oracle = naive(program, facts)
    for _ in range(2):
        question = random_question(random, program)
        values = values_of(question)
        for query in queries(program, question):
            expected = oracle.solve(query, values)
            source = MemoryFacts(facts)
            found = explain(program, source, query, values, now_s=NOW_S, goals=200)
            assert (found.derivation is not None) == bool(expected)
            for part in found.derivation or ():
                _check_tree(part, facts)
            for suggestion in found.suggestions:
                assert 1 <= len(suggestion) <= FACTS_MAX
                assert naive(program, [*facts, *suggestion]).solve(query, values)
