"""`penstock authz policy`: a policy's checks, form and tests, from its file alone."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import click

from penstock.authz.polar.check import check
from penstock.authz.polar.errors import Diagnostic, PolicyError, Span
from penstock.authz.polar.format import format_source
from penstock.authz.polar.graph import Graph, TooComplexError
from penstock.authz.polar.policy_tests import run_tests
from penstock.authz.polar.program import Fact, Program
from penstock.authz.polar.query import Evaluator
from penstock.authz.polar.tabled import MemoryFacts, Tabled
from penstock.cli.options import json_option
from penstock.cli.tables import print_json
from penstock.model.errors import InvalidRequestError
from penstock.system.clock import SystemClock

REFUSED_EXIT_STATUS = 1

_file = click.argument(
    "file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path)
)


@click.group("policy")
def command() -> None:
    """Check, format and test policies, without a server."""


@command.command("check")
@_file
@json_option
@click.pass_context
def check_policy(context: click.Context, file: Path, as_json: bool) -> None:
    """Say what is wrong with the policy in FILE (- is standard input), and where.

    With --json the diagnostics have lines, columns and offsets for editors. Exit status 1: it is
    refused.
    """
    source = _read(file)
    try:
        program = check(source)
    except PolicyError as error:
        if as_json:
            print_json({"ok": False, "diagnostics": [d.as_json(source) for d in error.diagnostics]})
        else:
            for diagnostic in error.diagnostics:
                click.echo(diagnostic.render(source, _name(file)))
        context.exit(REFUSED_EXIT_STATUS)
    slow = _slow(program)
    if as_json:
        notes = [{**each.as_json(source), "severity": "information"} for each in slow]
        print_json({"ok": True, "diagnostics": notes, "metadata": program.metadata})
        return
    for each in slow:
        click.echo(each.render(source, _name(file)))
    count = sum(map(len, program.clauses.values()))
    click.echo(
        f"OK: {len(program.types.kinds)} types, {count:,} rules over them, "
        f"{len(program.facts):,} kinds of facts"
    )


@command.command("fmt")
@_file
@click.option(
    "--check", "only_check", is_flag=True, help="Change nothing; exit status 1 if it would."
)
@click.pass_context
def format_policy(context: click.Context, file: Path, only_check: bool) -> None:
    """Write the policy in FILE in its one form; - goes from standard input to standard output.

    Comments stay. A block, rule or test that has comments inside is left as it is.
    """
    source = _read(file)
    try:
        text = format_source(source)
    except PolicyError as error:
        _refuse(context, error, file)
    if only_check:
        if text != source:
            click.echo(f"{_name(file)} would change")
            context.exit(REFUSED_EXIT_STATUS)
    elif _is_standard(file):
        click.echo(text, nl=False)
    elif text != source:
        file.write_text(text, encoding="utf-8")
        click.echo(f"formatted {file}")


@command.command("test")
@_file
@json_option
@click.pass_context
def run_policy_tests(context: click.Context, file: Path, as_json: bool) -> None:
    """Run the tests of the policy in FILE. Exit status 1: one failed, or it is refused."""
    source = _read(file)
    try:
        program = check(source)
    except PolicyError as error:
        if not as_json:
            _refuse(context, error, file)
        print_json(error.as_json())
        context.exit(REFUSED_EXIT_STATUS)
    results = run_tests(program, _evaluator)
    if as_json:
        print_json(results.as_json())
    else:
        for test in results.tests:
            passed = test.total - len(test.failures)
            click.echo(
                f"{'ok  ' if not test.failures else 'FAIL'} {test.name}: {passed}/{test.total}"
            )
        for failure in results.failures:
            click.echo(failure.render(source, _name(file)))
        if not results.tests:
            click.echo("no tests")
    if not results.is_success:
        context.exit(REFUSED_EXIT_STATUS)


def _evaluator(program: Program, facts: Iterable[Fact]) -> Evaluator:
    return Tabled(program, MemoryFacts(facts), now_s=SystemClock().now_ms() // 1000)


def _slow(program: Program) -> list[Diagnostic]:
    """Find what no single statement answers, which is allowed, and slower."""
    try:
        clauses = Graph(program).non_linear()
    except TooComplexError as error:
        return [Diagnostic(f"questions are answered without SQL: {error}", Span(0, 0))]
    spans = dict.fromkeys(clause.span for clause in clauses)
    message = "two conditions of this rule are recursive: it is answered without SQL"
    return [Diagnostic(message, span) for span in spans]


def _refuse(context: click.Context, error: PolicyError, file: Path) -> NoReturn:
    for diagnostic in error.diagnostics:
        click.echo(diagnostic.render(error.source, _name(file)), err=True)
    context.exit(REFUSED_EXIT_STATUS)


def _read(file: Path) -> str:
    try:
        if _is_standard(file):
            return sys.stdin.read()
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("read", _name(file), f"it isn't UTF-8: {error}") from error


def _is_standard(file: Path) -> bool:
    return str(file) == "-"


def _name(file: Path) -> str:
    return "standard input" if _is_standard(file) else str(file)
