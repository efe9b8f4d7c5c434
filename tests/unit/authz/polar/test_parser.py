"""Source to syntax: each form, and what is refused."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.polar import syntax as s
from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.parser import parse, parse_expression


def part(source):
    (found,) = parse(source).parts
    return found


def call(name, *arguments):
    return s.Call(s.Name(name), arguments)


def test_a_block_with_everything():
    block = part(
        """
        resource Repo extends Base, Other, {
          roles = ["reader", "admin",];
          permissions = ["read"];
          relations = { parent: Org, owner: User, };
          "read" if "reader" or ("admin" and global "staff");
          role if role on "parent";
          "admin" if is_owner(actor, resource);
          ;
        }
        """
    )
    assert [each.text for each in block.extends] == ["Base", "Other"]
    roles, permissions, relations, read, role, admin = block.items
    assert [each.text for each in roles.names] == ["reader", "admin"]
    assert permissions.kind == "permissions"
    assert relations.relations[0] == s.Relation(s.Name("parent"), s.Name("Org"))
    assert read.body == s.ShortOr(
        (
            s.Step(s.Name("reader")),
            s.ShortAnd((s.Step(s.Name("admin")), s.Step(s.Name("staff"), is_global=True))),
        )
    )
    assert role == s.ShorthandRule(
        s.Name("role"), True, s.Step(s.Name("role"), True, s.Name("parent"))
    )
    assert admin.body == call("is_owner", s.Variable("actor"), s.Variable("resource"))


def test_parameters_of_a_rule():
    rule = part('f(x: User, _: Org, "a", 3, true, Role{"r"}, y);')
    assert rule.body is None
    assert [each.term for each in rule.parameters] == [
        s.Variable("x"),
        s.Variable("_"),
        s.Value("String", "a"),
        s.Value("Integer", "3"),
        s.Value("Boolean", "true"),
        s.Value("Role", "r"),
        s.Variable("y"),
    ]
    assert rule.parameters[0].type == s.Name("User")


def test_operators_bind_as_documented():
    found = parse_expression('a() or b() and not c() and x = 3 or y in ["p"]')
    assert found == s.Or(
        (
            call("a"),
            s.And(
                (
                    call("b"),
                    s.Not(call("c")),
                    s.Compare("=", s.Variable("x"), s.Value("Integer", "3")),
                )
            ),
            s.In(s.Variable("y"), s.Items((s.Value("String", "p"),))),
        )
    )


def test_matches_flags_and_lists():
    assert parse_expression("x matches User and x matches! User") == s.And(
        (
            s.Matches(s.Variable("x"), s.Name("User")),
            s.Matches(s.Variable("x"), s.Name("User"), exact=True),
        )
    )
    assert parse_expression("[x, 1] = [2, y]").left == s.Items(
        (s.Variable("x"), s.Value("Integer", "1"))
    )
    assert parse_expression("t > @current_unix_time").right == s.Now()


def test_an_integer_in_braces_is_the_integer():
    assert parse_expression("f(Integer{3})") == parse_expression("f(3)")
    with pytest.raises(PolicyError, match="value of its own kind"):
        parse_expression('f(Integer{"3"})')


def test_a_test_with_fixtures():
    fixture, test = parse(
        """
        test fixture acme { has_role(User{"a"}, "r", Org{"o"}); }
        test "t" {
          setup { fixture acme; is_public(Repo{"r"}); }
          assert allow(User{"a"}, action: String, _) iff action in ["read"];
          assert_not allow(User{"b"}, "read", Org{"o"});
        }
        """
    ).parts
    assert fixture.facts[0].name.text == "has_role"
    assert test.setup[0] == s.UseFixture(s.Name("acme"))
    assert [each.expected for each in test.assertions] == [True, False]
    assert test.assertions[0].call.arguments[1] == s.Variable("action", s.Name("String"))


def test_other_parts():
    declare, kind, query, rule = parse(
        "declare has_tag(User, Tag,); type f(x: User); ?= f(x); @lint g(x);"
    ).parts
    assert declare == s.Declare(s.Name("has_tag"), (s.Name("User"), s.Name("Tag")))
    assert isinstance(kind, s.RuleType)
    assert query.body == call("f", s.Variable("x"))
    assert rule.name.text == "g"


def test_words_of_the_grammar_may_be_names():
    assert part("test(x) if type(x) and resource(actor, on);").name.text == "test"
    assert part("actor(x) if global(x);").name.text == "actor"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("f(x) if g(x)", "expected `;` after the rule"),
        ("f(x) if ;", "expected a variable or a literal, found `;`"),
        ("f(x if", "expected `,` or `\\)`"),
        ("f(and) ;", "expected a variable or a literal, found `and`"),
        ("f(@current_unix_time);", "a parameter is a variable or a literal"),
        ("resource R { colors = []; }", "unexpected declaration `colors`"),
        ('resource R { "a" if not "b"; }', "can't negate"),
        ('test "t" { }', "at least one assertion"),
        ('test "t" { setup { f(x); } assert f(1); }', "arguments are values"),
        ("f(1,2,3,4,5,6,7,8,9,10,11);", "11 parameters: there may be at most 10"),
        ("f(x) if x;", "expected a comparison"),
        ("}", "expected a block, a rule"),
        ("resource R {", "expected a declaration"),
    ],
)
def test_what_is_not_polar_is_refused(source, message):
    with pytest.raises(PolicyError, match=message):
        parse(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "(" * 20_000,
        "(" * 70 + "a()" + ")" * 70,
        "not " * 20_000 + "a()",
        "x = " + "[" * 20_000,
        "f(" * 3 + "[" * 70,
    ],
)
def test_deep_nesting_is_refused(body):
    with pytest.raises(PolicyError, match=r"nested deeper than 64|expected"):
        parse(f"f(x) if {body};")
    with pytest.raises(PolicyError):
        parse(f'resource R {{ "a" if {body}; }}')


def test_sixty_levels_are_read():
    parse("f(x) if " + "(" * 60 + "a()" + ")" * 60 + ";")


@pytest.mark.slow
def test_a_quarter_of_a_megabyte_is_read_in_seconds():
    source = "f(x: A) if g(x) or h(x);\n" * 10_000
    started = time.process_time()
    assert len(parse(source).parts) == 10_000
    assert time.process_time() - started < 6


@given(st.text(alphabet='ab ()[]{},;:=<>!"\\#@_1\nifor', max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)
    except PolicyError as error:
        assert error.message
