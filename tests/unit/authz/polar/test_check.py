"""A policy's checks: what clauses, facts and metadata come of it, and what is refused."""

import time

import pytest

from penstock.authz.polar.check import check
from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.format import format_source
from penstock.authz.polar.program import Signature
from penstock.authz.polar.values import check_fact
from penstock.model.errors import InvalidRequestError
from support.polar import POLICIES, fact


def shown(program):
    """Each clause as one line of text."""
    lines = set()
    for clauses in program.clauses.values():
        for clause in clauses:

            def term(each, clause=clause):
                return clause.names[each] if isinstance(each, int) else f'"{each}"'

            def atom(each):
                types = each.signature.types
                inner = (f"{term(t)}: {kind}" for t, kind in zip(each.terms, types, strict=True))
                return f"{each.signature.predicate}({', '.join(inner)})"

            lines.add(" & ".join([atom(clause.head), *map(atom, clause.body)]))
    return lines


def messages(source):
    with pytest.raises(PolicyError) as error:
        check(source)
    return [each.message for each in error.value.diagnostics]


@pytest.mark.parametrize("name", POLICIES)
def test_the_ten_policies_pass_and_are_in_the_one_form(name):
    check(POLICIES[name])
    assert format_source(POLICIES[name]) == POLICIES[name]


def test_shorthand_becomes_rules():
    program = check(
        """
        actor User {}
        global { roles = ["staff"]; }
        resource Org { roles = ["member", "owner"]; }
        resource Repo {
          roles = ["member", "owner", "guest"];
          permissions = ["read"];
          relations = { parent: Org, author: User };
          "read" if "member" and is_open(resource);
          "read" if global "staff";
          "guest" if "author";
          role if role on "parent";
        }
        allow(a: User, b: String, c: Repo) if has_permission(a, b, c);
        """
    )
    role = "has_role(actor: User"
    assert shown(program) == {
        (
            'has_permission(actor: User, "read": String, resource: Repo)'
            f' & {role}, "member": String, resource: Repo) & is_open(resource: Repo)'
        ),
        f'has_permission(actor: User, "read": String, resource: Repo) & {role}, "staff": String)',
        (
            f'{role}, "guest": String, resource: Repo)'
            ' & has_relation(resource: Repo, "author": String, actor: User)'
        ),
        (
            f'{role}, "member": String, resource: Repo)'
            ' & has_relation(resource: Repo, "parent": String, parent: Org)'
            f' & {role}, "member": String, parent: Org)'
        ),
        (
            f'{role}, "owner": String, resource: Repo)'
            ' & has_relation(resource: Repo, "parent": String, parent: Org)'
            f' & {role}, "owner": String, parent: Org)'
        ),
        "allow(a: User, b: String, c: Repo) & has_permission(a: User, b: String, c: Repo)",
    }


def test_metadata_has_each_type_and_global():
    program = check(
        """
        actor User {}
        resource Base { roles = ["z", "a"]; relations = { owner: User }; }
        resource Repo extends Base { permissions = ["write", "read"]; }
        """
    )
    assert program.metadata == {
        "Base": {"roles": ["a", "z"], "permissions": [], "relations": {"owner": "User"}},
        "Repo": {
            "roles": ["a", "z"],
            "permissions": ["read", "write"],
            "relations": {"owner": "User"},
        },
        "User": {"roles": [], "permissions": [], "relations": {}},
        "global": {"roles": [], "permissions": [], "relations": {}},
    }


def test_a_rule_over_a_supertype_holds_for_each_subtype():
    program = check(
        "actor User {} actor Bot {} resource A {} resource B extends A {}"
        ' f(_: Actor, x: A) if g(x); allow(a: User, "x", b: A) if f(a, b);'
    )
    assert {str(each) for each in program.clauses if each.predicate == "f"} == {
        "f(User, A)",
        "f(User, B)",
        "f(Bot, A)",
        "f(Bot, B)",
    }


def test_types_are_inferred_from_rules_blocks_and_declarations():
    program = check(
        """
        actor User {}
        resource Org { roles = ["m"]; }
        resource Repo { relations = { parent: Org, author: User }; }
        declare has_tag(Repo, String);
        f(user: User, repo: Repo) if
          has_relation(repo, "parent", org) and has_role(user, "m", org) and has_tag(repo, tag);
        g(user: User) if f(user, repo);
        h(user) if g(user) and n < 3 and count(user, n);
        allow(u: User, "x", r: Repo) if h(u) and f(u, r);
        """
    )
    assert Signature("count", ("User", "Integer")) in program.facts
    assert Signature("has_relation", ("Repo", "String", "User")) in program.facts
    assert set(program.clauses) == {
        Signature("f", ("User", "Repo")),
        Signature("g", ("User",)),
        Signature("h", ("User",)),
        Signature("allow", ("User", "String", "Repo")),
    }


def test_equal_variables_are_one_and_lists_unify():
    program = check(
        "actor User {} resource R {}"
        ' f(x: User, y, "c", z: String) if g(x) and [x, z] = [y, w] and w = "v";'
        ' allow(u: User, "a", r: R) if f(u, u, "c", "v") and k(r);'
    )
    (clause,) = program.clauses[Signature("f", ("User", "User", "String", "String"))]
    assert clause.head.terms == (0, 0, "c", "v")


def test_in_tries_each_element_and_false_never_holds():
    program = check(
        'actor User {} f(x: User, r: String) if r in ["a", "b"] and g(x) or false and g(x);'
        ' allow(u: User, "x", v: User) if f(u, "a") and f(v, "b");'
    )
    heads = {c.head.terms for c in program.clauses[Signature("f", ("User", "String"))]}
    assert heads == {(0, "a"), (0, "b")}


def test_a_policys_own_allow_replaces_the_implied_one():
    implied = check('actor User {} resource R { permissions = ["p"]; }')
    assert {str(each) for each in implied.clauses} == {"allow(User, String, R)"}
    own = check('actor User {} resource R { permissions = ["p"]; } allow(_: User, "p", _: R);')
    (clause,) = own.clauses[Signature("allow", ("User", "String", "R"))]
    assert clause.body == ()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("resource Repo {} f(x: Repos);", "unknown type Repos: did you mean Repo?"),
        ("f(x: Zebra);", "unknown type Zebra: declare it: resource Zebra {}"),
        ('f(x) if g(x, Zebra{"z"});', "unknown type Zebra: declare it: resource Zebra {}"),
        ("declare f(Zebra);", "unknown type Zebra: declare it: resource Zebra {}"),
        ("resource A { relations = { b: B }; }", "unknown type B: declare it: resource B {}"),
        ("resource A {} actor A {}", "duplicate block A"),
        ("global {} global {}", "duplicate block global"),
        ("resource Actor {}", "Actor is a type of the language"),
        ('resource A { roles = ["x"]; permissions = ["x"]; }', 'duplicate declaration "x"'),
        ("global { relations = { a: B }; }", "the global block has no relations"),
        ("resource A extends C {}", "unknown type C: declare it: resource C {}"),
        (
            'resource A { roles = ["x"]; "x" if "y"; }',
            'undeclared "y": A declares no role, permission or relation of this name',
        ),
        (
            'resource B {} resource A { roles = ["x"]; relations = { b: B }; "x" if "y" on "b"; }',
            'undeclared "y": B declares no role, permission or relation of this name',
        ),
        (
            'resource A { roles = ["x"]; "x" if "x" on "b"; }',
            'undeclared relation "b" of A',
        ),
        (
            'resource A { roles = ["x"]; "x" if global "y"; }',
            'undeclared global "y": the global block declares no role or permission of this name',
        ),
        (
            'resource A { roles = ["x"]; x if "x"; }',
            "undeclared x: a head is a string, `role` or `permission`",
        ),
        (
            'global { roles = ["x"]; "x" if "x" on "b"; }',
            "`on` in the global block, which has no relations",
        ),
        (
            "actor U {} f(x: U) if g(x, y);",
            "variable y has no type: give it one by `matches`, in the head, or by `declare`",
        ),
        (
            "f(x: Integer) if x > 3;",
            "variable x is unbound: a call that isn't negated has to bind it",
        ),
        (
            "actor U {} f(x: U) if not g(x);",
            "variable x is unbound: a call that isn't negated has to bind it",
        ),
        (
            "actor U {} f(x: U) if g(x) and not h(x, _);",
            "variable _ has no type: declare h",
        ),
        (
            "actor U {} f(x: U) if g(x) and not (h(x) and k(x));",
            "not takes one call of a stored fact",
        ),
        (
            "actor U {} f(x: U) if g(x) and not x = x;",
            "not takes one call of a stored fact; write != for not =",
        ),
        (
            "actor U {} h(x: U) if k(x); f(x: U) if g(x) and not h(x);",
            "not can't be applied to h: rules define it, and not takes a stored fact",
        ),
        (
            "actor U {} g(_: U); f(x: U) if g(x) and not h(x);",
            "variable x may stand for any value, which can't be compared or negated",
        ),
        (
            "g(_: Integer); f(x: Integer) if g(x) and x > 3;",
            "variable x may stand for any value, which can't be compared or negated",
        ),
        (
            "actor U {} f(x: U, x: U);",
            "variable x may stand for any value, and stands twice in the head",
        ),
        ("actor U {} f(x: U) if g(x) and x > 3;", "> compares Integers alone"),
        ('f(x: Integer) if g(x) and x > "a";', "> compares Integers, not a String"),
        ("actor U {} f(x: U) if x matches! U and g(x);", "matches! isn't supported: use matches"),
        ("f(x: String) if g(x) and x = [x];", "a list is compared with a list"),
        ("f(x: String) if g([x]);", "a list can't be an argument"),
        ('test "t" { setup { fixture f; } assert g(1); }', "unknown fixture f"),
        ("test fixture f {} test fixture f {}", "duplicate fixture f"),
        ('test "t" { assert g(x: Nope); }', "unknown type Nope: declare it: resource Nope {}"),
        ('test "t" { assert g(x: String, y: String); }', "an assertion has at most one variable"),
        (
            'test "t" { assert g("a") iff x in ["b"]; }',
            "iff needs a variable: assert allow(..., action: String, ...) iff ...",
        ),
        (
            'test "t" { assert g(x: String) iff h(x); }',
            "iff is followed by =, in, or, true or false about the assertion's variable",
        ),
    ],
)
def test_what_is_refused_and_how(source, message):
    assert messages(source) == [message]


def test_a_cycle_of_extends_is_refused():
    assert messages("resource A extends B {} resource B extends A {} resource C extends A {}") == [
        "cyclic extends: A extends itself",
        "cyclic extends: B extends itself",
        "cyclic extends: C extends itself",
    ]


def test_all_that_is_wrong_is_said_at_once_and_as_the_api_does():
    source = "actor U {} f(x: U) if g(x, y); f(x: U) if not k(x);\n"
    with pytest.raises(PolicyError) as error:
        check(source)
    found = error.value.as_json()
    assert found["error_type"] == "Validation"
    assert [each["error_type"] for each in found["errors"]] == ["ValidationFailed"] * 2
    assert "1:12: variable y has no type" in found["message"]
    with pytest.raises(PolicyError) as error:
        check("f(")
    assert error.value.as_json().keys() == {"error_type", "message"}


def test_wildcards_of_one_role_leave_other_roles_alone():
    """A rule for any user of one role doesn't make holders of another role "any"."""
    check(
        'actor U {} resource R { roles = ["guest", "member"]; }'
        ' has_role(_: U, "guest", r: R) if is_open(r);'
        ' f(u: U, r: R) if has_role(u, "member", r) and not is_banned(u);'
    )
    assert messages(
        'actor U {} resource R { roles = ["guest", "member"]; }'
        ' has_role(_: U, "guest", r: R) if is_open(r);'
        ' f(u: U, r: R) if has_role(u, "guest", r) and not is_banned(u);'
    ) == ["variable u may stand for any value, which can't be compared or negated"]


def test_facts_that_a_policy_accepts():
    program = check(POLICIES["02-github"])
    check_fact(program, fact("has_role", "User:a", "member", "Organization:acme"))
    check_fact(program, fact("has_role", "User:a", "no such role", "Organization:acme"))
    with pytest.raises(InvalidRequestError) as error:
        check_fact(program, fact("has_role", "User:a", "member", "Issue:1"))
    assert str(error.value) == (
        "check fact: the policy has no fact has_role(User, String, Issue) (it accepts "
        "has_role(User, String, Organization), has_role(User, String, Repository))"
    )
    with pytest.raises(InvalidRequestError, match="no rule or declaration mentions"):
        check_fact(program, fact("has_rolle", "User:a"))


HOSTILE = {
    "or": "f(x: U) if " + " and ".join("(a(x) or b(x))" for _ in range(40)) + ";",
    "in": f"f(x: U, y: String) if g(x) and y in [{'1,' * 5000}];",
    "types": "".join(f"resource R{n} {{}}" for n in range(100))
    + "f(a: Resource, b: Resource, c: Resource) if g(a, b, c);",
    "inferred types": "".join(f"resource R{n} {{}}" for n in range(60))
    + "g(_: Resource, _: Resource); f(a) if "
    + " and ".join(f"g(a{n}, a{n + 1})" for n in range(20))
    + " and g(a20, a);",
    "declare": "".join(f"resource R{n} {{}}" for n in range(100))
    + "declare f(Resource, Resource, Resource);",
    "inheritance": "".join(
        f"resource R{n} extends {', '.join(f'R{m}' for m in range(n))} {{ roles = ["
        + ",".join(f'"r{n}_{k}"' for k in range(20))
        + "]; }"
        if n
        else "resource R0 {}"
        for n in range(300)
    ),
    "blocks": "".join(f"resource R{n} {{}}" for n in range(5000)),
    "actors": "".join(f'actor R{n} {{ roles = ["a"]; }}' for n in range(450)),
    "conditions": "f(x: U) if " + " and ".join(f"g{n}(x)" for n in range(70)) + ";",
    "wildcards": "f(" + ", ".join(f"x{n}: U" for n in range(10)) + ") if k(x0);"
    + "".join(
        "f(" + ", ".join(f"x{n}: U" for n in range(10)) + f") if k(x{m}) and f("
        + ", ".join(f"{'x' if n != m else 'y'}{n}" for n in range(10)) + ");"
        for m in range(10)
    )
    + "g(x: U) if f(" + ", ".join("_" for _ in range(9)) + ", x)"
    + " and f(" + ", ".join("_" for _ in range(9)) + ", x);",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_policy_is_bounded(name):
    started = time.process_time()
    try:
        check("actor U {} " + HOSTILE[name])
    except PolicyError as error:
        assert len(error.message) < 100_000
    else:
        assert name == "wildcards"
    assert time.process_time() - started < 20


@pytest.mark.slow
def test_a_thousand_rules_in_the_worst_order_are_typed():
    """Each rule's variable gets its type from the rule that comes after it."""
    rules = "".join(f"f{n}(x) if f{n + 1}(x);" for n in range(1000))
    started = time.process_time()
    program = check(f"actor U {{}} {rules} f1000(x: U) if g(x);")
    assert len(program.clauses) == 1001
    assert time.process_time() - started < 20
