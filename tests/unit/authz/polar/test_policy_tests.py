"""Tests in policies: what passes, what fails and how that is reported."""

import pytest

from penstock.authz.polar.check import check
from penstock.authz.polar.policy_tests import run_tests
from support.polar import POLICIES, naive

HEAD = """
actor User {}
resource Org { roles = ["member"]; permissions = ["read"]; "read" if "member"; }
test fixture acme { has_role(User{"alice"}, "member", Org{"acme"}); }
"""


def failures(assertions):
    body = f'test "t" {{ setup {{ fixture acme; }} {assertions} }}'
    return [each.message for each in run_tests(check(HEAD + body), naive).failures]


@pytest.mark.parametrize("name", POLICIES)
def test_the_ten_policies_pass_their_tests(name):
    results = run_tests(check(POLICIES[name]), naive)
    assert results.as_json()["errors"] == []
    assert len(results.tests) >= 1


def test_results_have_the_documented_shape():
    source = HEAD + (
        'test "good" { setup { fixture acme; } assert allow(User{"alice"}, "read", Org{"acme"}); }'
        'test "bad" { assert allow(User{"alice"}, "read", Org{"acme"});'
        ' assert_not allow(User{"alice"}, "read", Org{"acme"}); }'
    )
    results = run_tests(check(source), naive)
    found = results.as_json()
    assert found["success"] is False
    assert found["tests"] == [
        {"name": "good", "passed": 1, "total": 1},
        {"name": "bad", "passed": 1, "total": 2},
    ]
    assert [each["error_type"] for each in found["errors"]] == ["AssertionFailed"]
    error = results.error_as_json()
    assert error["error_type"] == "TestsFailed"
    assert "assertion failed: nothing allows it" in error["message"]
    assert "^^^^" in error["message"]


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ('assert allow(User{"bob"}, "read", Org{"acme"});', "assertion failed: nothing allows it"),
        ('assert_not allow(User{"alice"}, _, Org{"acme"});', "assertion failed: it holds"),
        (
            'assert allow(u: User, "read", Org{"acme"}) iff u in ["bob"];',
            'assertion failed: not User{"bob"}, also User{"alice"}',
        ),
        (
            'assert allow(User{"alice"}, a: String, Org{"acme"}) iff a in ["read", "write"];',
            'assertion failed: not "write"',
        ),
        (
            'assert_not allow(User{"alice"}, a: String, Org{"acme"}) iff a = "read";',
            "assertion failed: the answers are exactly these",
        ),
        (
            'assert allow(u: User, "read", Org{"acme"}) iff true;',
            'assertion failed: not User{"*"}, also User{"alice"}',
        ),
        (
            'assert allow(u: User, "read", Org{"acme"}) iff false;',
            'assertion failed: also User{"alice"}',
        ),
    ],
)
def test_how_an_assertion_fails(assertion, message):
    assert failures(assertion) == [message]


@pytest.mark.slow
@pytest.mark.parametrize(
    "assertion",
    [
        'assert allow(u: User, "read", Org{"acme"}) iff u = User{"alice"};',
        'assert allow(u: User, "read", Org{"acme"}) iff "alice" = u or u in ["alice"];',
        'assert allow(u, "read", Org{"acme"}) iff u in [User{"alice"}];',
        'assert allow(u: Actor, "read", Org{"acme"}) iff u in [User{"alice"}];',
        'assert allow(_, _, Org{"acme"});',
        'assert_not allow(u: User, "read", Org{"evil"});',
        'assert allow(u: User, "read", Org{"evil"}) iff false;',
    ],
)
def test_what_passes(assertion):
    assert failures(assertion) == []


def test_inline_queries_are_asked_without_facts():
    program = check("f(_: Integer); ?= f(3) and not g(1); ?= g(1);")
    results = run_tests(program, naive)
    (failure,) = results.queries
    assert failure.span.start == program.source.rindex("?=")
    assert results.as_json()["success"] is False


@pytest.mark.slow
def test_a_test_that_takes_too_many_steps_fails():
    letters = "abcdefghij"
    head = f"f({', '.join(f'{x}: Integer' for x in letters)}) if "
    source = head + " and ".join(f"g({x})" for x in letters) + ";"
    facts = "".join(f"g({n});" for n in range(30))
    source += f'test "t" {{ setup {{ {facts} }} assert g(1); }}'
    (failure,) = run_tests(check(source), naive).failures
    assert "the test was stopped: it takes too many steps" in failure.message
