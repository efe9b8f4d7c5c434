"""What a person and an editor see where a policy is wrong."""

import pytest

from penstock.authz.polar.errors import Diagnostic, PolicyError, Span
from penstock.authz.polar.parser import parse


def test_a_caret_stands_under_what_is_wrong():
    source = 'resource Repo {\n\troles = ["a"];\n\t"read" when "a";\n}\n'
    with pytest.raises(PolicyError) as error:
        parse(source)
    assert error.value.message == (
        '3:9: expected `if`, found `when`\n  |\n3 | \t"read" when "a";\n  | \t       ^^^^'
    )


def test_a_long_line_is_cut_around_the_place():
    source = "x" * 50_000
    shown = Diagnostic("wrong", Span(30_000, 50_000)).render(source, "p.polar")
    assert shown.startswith("p.polar:1:30001: wrong")
    assert len(shown) < 600
    text, marks = (line.partition("| ")[2] for line in shown.splitlines()[2:])
    assert len(text) == len(marks) == 200


def test_the_end_of_a_policy_has_a_place():
    with pytest.raises(PolicyError) as error:
        parse("f(x)\n")
    assert "2:1: expected `if` or `;`, found the end of the policy" in error.value.message


def test_an_editor_gets_lines_and_columns_of_both_ends():
    assert Diagnostic("m", Span(3, 5)).as_json("ab\ncd") == {
        "severity": "error",
        "message": "m",
        "start": {"line": 2, "column": 1, "offset": 3},
        "end": {"line": 2, "column": 3, "offset": 5},
    }


def test_diagnostics_are_in_the_order_of_the_source():
    error = PolicyError("ab", [Diagnostic("second", Span(1, 2)), Diagnostic("first", Span(0, 1))])
    assert [each.message for each in error.diagnostics] == ["first", "second"]
