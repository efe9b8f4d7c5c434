"""`penstock authz policy`: check, format and test a policy from its file alone."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from support.polar import POLICIES

GOOD = POLICIES["01-tenants"]
BAD = "actor User {}\nf(x: Usr) if g(x);\n"


def run(*arguments, stdin=None):
    return CliRunner().invoke(root, ["authz", "policy", *map(str, arguments)], input=stdin)


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.polar"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.polar"
    path.write_text(BAD)
    return path


def test_a_policy_that_passes(good):
    result = run("check", good)
    assert (result.exit_code, result.output) == (
        0,
        "OK: 2 types, 4 rules over them, 2 kinds of facts\n",
    )


def test_a_policy_that_is_refused_is_shown_with_a_caret(bad):
    result = run("check", bad)
    assert result.exit_code == 1
    assert result.output == (
        f"{bad}:2:6: unknown type Usr: did you mean User?\n"
        "  |\n2 | f(x: Usr) if g(x);\n  |      ^^^\n"
    )


def test_diagnostics_for_editors(good, bad):
    result = run("check", bad, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output) == {
        "ok": False,
        "diagnostics": [
            {
                "severity": "error",
                "message": "unknown type Usr: did you mean User?",
                "start": {"line": 2, "column": 6, "offset": 19},
                "end": {"line": 2, "column": 9, "offset": 22},
            }
        ],
    }
    found = json.loads(run("check", good, "--json").output)
    assert found["ok"]
    assert found["metadata"]["Organization"]["roles"] == ["admin", "member"]


def test_a_rule_that_no_statement_answers_is_named():
    source = "actor U {}\nk(x: U, y: U) if m(x, y);\nk(x: U, y: U) if k(x, z) and k(z, y);\n"
    result = run("check", "-", stdin=source)
    assert result.exit_code == 0
    assert "standard input:3:1: two conditions of this rule are recursive" in result.output
    (note,) = json.loads(run("check", "-", "--json", stdin=source).output)["diagnostics"]
    assert note["severity"] == "information"


def test_fmt_writes_a_file_in_place_once(tmp_path):
    path = tmp_path / "p.polar"
    path.write_text("actor   User{}  # who\n")
    assert run("fmt", path, "--check").exit_code == 1
    assert path.read_text() == "actor   User{}  # who\n"
    assert run("fmt", path).output == f"formatted {path}\n"
    assert path.read_text() == "actor User {}  # who\n"
    assert run("fmt", path).output == ""
    assert run("fmt", path, "--check").exit_code == 0


def test_fmt_goes_from_input_to_output():
    assert run("fmt", "-", stdin="actor   User{}").output == "actor User {}\n"


def test_fmt_leaves_what_is_not_polar_alone(tmp_path):
    path = tmp_path / "p.polar"
    path.write_text("actor {")
    result = run("fmt", path)
    assert result.exit_code == 1
    assert "expected" in result.output
    assert path.read_text() == "actor {"


def test_tests_of_a_policy(good):
    result = run("test", good)
    assert (result.exit_code, result.output) == (
        0,
        "ok   members read, admins add: 5/5\nok   another tenant sees nothing: 2/2\n",
    )
    assert json.loads(run("test", good, "--json").output)["success"] is True


def test_a_test_that_fails(tmp_path):
    path = tmp_path / "p.polar"
    path.write_text(
        GOOD + '\ntest "no" {\n  assert allow(User{"x"}, "read", Organization{"y"});\n}\n'
    )
    result = run("test", path)
    assert result.exit_code == 1
    assert "FAIL no: 0/1" in result.output
    assert "assertion failed: nothing allows it" in result.output
    found = run("test", path, "--json")
    assert found.exit_code == 1
    assert json.loads(found.output)["tests"][-1] == {"name": "no", "passed": 0, "total": 1}


def test_a_policy_that_is_refused_has_no_tests(bad):
    assert run("test", bad).exit_code == 1
    assert json.loads(run("test", bad, "--json").output)["error_type"] == "Validation"


def test_bytes_that_are_no_text_are_one_error(tmp_path):
    path = tmp_path / "p.polar"
    path.write_bytes(b"\xff")
    assert "it isn't UTF-8" in str(run("check", path).exception)
