"""The tests that a policy carries: run on every change, with results in the API's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Diagnostic
from penstock.authz.polar.program import Fact, Program, Value
from penstock.authz.polar.query import Constraint, Evaluator, Question, solve
from penstock.model.errors import OverloadedError

MakeEvaluator = Callable[[Program, Iterable[Fact]], Evaluator]

_ANY_ID: Final = ""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The outcome of one test; `failures` has one per assertion that failed."""

    name: str
    total: int
    failures: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class TestResults:
    """The outcome of a policy's tests and inline queries."""

    program: Program
    tests: tuple[TestResult, ...]
    queries: tuple[Diagnostic, ...]

    @property
    def is_success(self) -> bool:
        """Whether all passed."""
        return not self.failures

    @property
    def failures(self) -> list[Diagnostic]:
        """All failures, inline queries first."""
        return [*self.queries, *(each for test in self.tests for each in test.failures)]

    def as_json(self) -> dict[str, object]:
        """Give `test_results` of the API."""
        return {
            "success": self.is_success,
            "errors": [
                {"error_type": "AssertionFailed", "message": each.render(self.program.source)}
                for each in self.failures
            ],
            "tests": [
                {
                    "name": test.name,
                    "passed": test.total - len(test.failures),
                    "total": test.total,
                }
                for test in self.tests
            ],
        }

    def error_as_json(self) -> dict[str, object]:
        """Give the error of a policy whose tests failed, as the API does."""
        message = "\n".join(each.render(self.program.source) for each in self.failures)
        return {"error_type": "TestsFailed", "message": message, "test_results": self.as_json()}


def run_tests(program: Program, make: MakeEvaluator) -> TestResults:
    """Run the tests of a policy, each on its own facts."""
    results = tuple(_run(program, test, make) for test in program.tests)
    empty = make(program, ()) if program.queries else None
    queries = tuple(
        Diagnostic("the query failed: it has no answer without facts", span)
        for name, span in program.queries.items()
        if empty is not None and not solve(program, empty, Question(((name, ()),), {}))
    )
    return TestResults(program, results, queries)


def _run(program: Program, test: syntax.Test, make: MakeEvaluator) -> TestResult:
    facts = [_fact(call) for call in _setup(program, test)]
    failures = []
    try:
        evaluator = make(program, facts)
        for assertion in test.assertions:
            failure = _failure(program, evaluator, assertion)
            if failure:
                failures.append(Diagnostic(failure, assertion.span))
    except OverloadedError as error:
        failures.append(Diagnostic(f"the test was stopped: {error.detail}", test.span))
    return TestResult(test.name.text, len(test.assertions), tuple(failures))


def _setup(program: Program, test: syntax.Test) -> Iterator[syntax.Call]:
    for item in test.setup:
        if isinstance(item, syntax.UseFixture):
            yield from program.fixtures[item.name.text]
        else:
            yield item


def _fact(call: syntax.Call) -> Fact:
    values = (each for each in call.arguments if isinstance(each, syntax.Value))
    return Fact(call.name.text, tuple(Value(each.type, each.id) for each in values))


def _failure(program: Program, evaluator: Evaluator, assertion: syntax.Assertion) -> str:
    """Say how an assertion failed; empty if it passed."""
    question, asked = _question(assertion.call)
    found = solve(program, evaluator, question)
    if assertion.iff is None:
        if bool(found) == assertion.expected:
            return ""
        return f"assertion failed: {'nothing allows it' if assertion.expected else 'it holds'}"
    column = list(question.constraints).index(asked)
    answers = {row[column] for row in found}
    kinds = {value.type for value in answers} | set(
        program.types.concrete(question.constraints[asked].type or "")
    )
    expected = _expected(assertion.iff, asked, kinds)
    if (answers == expected) == assertion.expected:
        return ""
    missing, extra = expected - answers, answers - expected
    parts = [f"{what} {_shown(each)}" for what, each in (("not", missing), ("also", extra)) if each]
    return f"assertion failed: {', '.join(parts) or 'the answers are exactly these'}"


def _question(call: syntax.Call) -> tuple[Question, str]:
    constraints: dict[str, Constraint] = {}
    names = []
    asked = ""
    for number, term in enumerate(call.arguments):
        name = f"#{number}"
        if isinstance(term, syntax.Value):
            constraints[name] = Constraint(term.type, (term.id,))
        elif isinstance(term, syntax.Variable) and not term.is_anonymous:
            name = asked = term.name
            before = constraints.get(name)
            kind = term.type.text if term.type else before.type if before else None
            constraints[name] = Constraint(kind)
        names.append(name)
    return Question(((call.name.text, tuple(names)),), constraints), asked


def _expected(part: syntax.Expression, asked: str, kinds: set[str]) -> set[Value]:
    """Give the values for which an `iff` holds; `check` has refused what isn't read here."""
    match part:
        case syntax.Or():
            return {value for each in part.parts for value in _expected(each, asked, kinds)}
        case syntax.Truth():
            return {Value(kind, _ANY_ID) for kind in kinds} if part.value else set()
        case syntax.In():
            return {each for item in part.items.items for each in _typed(item, kinds)}
        case syntax.Compare():
            other = part.right if isinstance(part.left, syntax.Variable) else part.left
            return _typed(other, kinds)
        case _:
            raise AssertionError(part)


def _typed(term: syntax.Term, kinds: set[str]) -> set[Value]:
    """Give a literal as a value; a string is an id where the variable isn't a String."""
    assert isinstance(term, syntax.Value)
    if term.type == "String" and kinds and "String" not in kinds:
        return {Value(kind, term.id) for kind in kinds}
    return {Value(term.type, term.id)}


def _shown(values: set[Value]) -> str:
    texts = sorted(
        f'"{each.id}"' if each.type == "String" else f'{each.type}{{"{each.id or "*"}"}}'
        for each in values
    )
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
