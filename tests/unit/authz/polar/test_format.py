"""A formatted policy says the same, and formatting it again changes nothing."""

import pytest
from hypothesis import given

from penstock.authz.polar.format import format_policy, format_source
from penstock.authz.polar.parser import parse
from support.polar_syntax import policies


@pytest.mark.slow
@given(policies)
def test_reading_what_was_written_gives_the_same(policy):
    text = format_policy(policy)
    assert parse(text) == policy
    assert format_policy(parse(text)) == text
    assert format_source(text) == text


def test_a_policy_in_the_one_form():
    source = """resource  Repo{roles=["a","b"];relations={parent:Org};
    "a" if "b" or ("a" on "parent" and global "x");}
    f(x:Repo) if (g(x) or h(x)) and not (i(x));;
    g(_:Repo);"""
    assert format_source(source) == (
        "resource Repo {\n"
        '  roles = ["a", "b"];\n'
        "  relations = { parent: Org };\n"
        "\n"
        '  "a" if "b" or "a" on "parent" and global "x";\n'
        "}\n"
        "\n"
        "f(x: Repo) if (g(x) or h(x)) and not i(x);\n"
        "g(_: Repo);\n"
    )


def test_a_long_body_takes_a_line_per_condition():
    names = [f"condition_number_{number}(x)" for number in range(6)]
    assert format_source(f"f(x: A) if {' and '.join(names)};") == (
        "f(x: A) if\n  " + " and\n  ".join(names) + ";\n"
    )


def test_comments_stay():
    source = (
        "# head\nactor User {}  # beings\n\n# why\n# more\nresource R { # odd   form\n}\n"
        "f(x: R);\n# end\n"
    )
    once = format_source(source)
    assert once == (
        "# head\nactor User {}  # beings\n\n# why\n# more\nresource R { # odd   form\n}\n\n"
        "f(x: R);\n\n# end\n"
    )
    assert format_source(once) == once
