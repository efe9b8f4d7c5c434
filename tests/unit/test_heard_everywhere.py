"""No error is swallowed unheard: each `except` that goes on calls `heard`, or has its reason here.

An `except` goes on when it neither raises, nor hands the error to a caller that names it; one that
writes a log line of its own goes on, too, since `heard` is what counts and limits such lines.
`contextlib.suppress` and `return_exceptions` are an `except` without a body.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.system.heard import Cause
from support.heard_reasons import REASONS

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
HEARD = {"heard", "failed"}
"""Calls that count: `penstock.system.heard.heard`, `Background.failed`."""
LINES = {"debug", "info", "warning", "error", "exception", "critical", "log"}
GOES_ON = re.compile(r"\bexcept\b|\bsuppress\b|\breturn_exceptions\b")
"""What a module has that swallows an error."""


def is_line(call: ast.Call) -> bool:
    """Whether it writes a log line."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LINES
        and "logger" in ast.unparse(function.value)
    )


def always_raises(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and always_raises(last.body) and always_raises(last.orelse)
    return isinstance(last, ast.Raise)


def hands_on(handler: ast.ExceptHandler) -> bool:
    """Whether something else than a log line gets the error."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    lines = [node for node in nodes if isinstance(node, ast.Call) and is_line(node)]
    if lines or handler.name is None:
        return False
    return any(isinstance(node, ast.Name) and node.id == handler.name for node in nodes)


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_heard(handler: ast.ExceptHandler) -> bool:
    return any(
        isinstance(node, ast.Call) and called(node) in HEARD
        for statement in handler.body
        for node in ast.walk(statement)
    )


def swallowed(node: ast.AST) -> str | None:
    """What goes on after which errors; None: nothing, or it is heard."""
    if isinstance(node, ast.ExceptHandler):
        if always_raises(node.body) or hands_on(node) or is_heard(node):
            return None
        return ast.unparse(node.type) if node.type else "everything"
    if isinstance(node, ast.Call) and called(node) == "suppress":
        return f"suppress {', '.join(map(ast.unparse, node.args))}"
    if isinstance(node, ast.keyword) and node.arg == "return_exceptions":
        return "return_exceptions"
    return None


def places(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """`function: errors` of all that goes on inside."""
    for child in ast.iter_child_nodes(node):
        inside = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*names, child.name)
        found = swallowed(child)
        if found is not None:
            yield f"{'.'.join(inside)}: {found}"
        yield from places(child, inside)


@functools.cache
def found_in_source() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE).as_posix()
        if relative.partition("/")[0] != "testing":
            source = path.read_text(encoding="utf-8")
            if not GOES_ON.search(source):  # parsing all of the source takes seconds
                continue
            found |= {f"{relative} {place}" for place in places(ast.parse(source))}
    return found


def test_what_goes_on_is_heard_or_has_its_reason() -> None:
    assert sorted(found_in_source() - set(REASONS)) == []


def test_no_reason_is_left_of_what_is_gone() -> None:
    assert sorted(set(REASONS) - found_in_source()) == []


def test_each_cause_is_named_somewhere() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "heard.py"
    )
    assert [cause.name for cause in Cause if f"Cause.{cause.name}" not in source] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("try: f()\nexcept ValueError: pass", {"f: ValueError"}),
        ("try: f()\nexcept ValueError: raise", set()),
        ("try: f()\nexcept ValueError as e: return e", set()),
        ("try: f()\nexcept ValueError as e: logger.info('%s', e)", {"f: ValueError"}),
        ("try: f()\nexcept ValueError as e: heard(C, e, logger, 'x')", set()),
        ("try: f()\nexcept ValueError as e:\n  if e: raise\n  g()", set()),
        ("with contextlib.suppress(OSError): f()", {"f: suppress OSError"}),
    ],
)
def test_what_goes_on_is_found(text: str, found: set[str]) -> None:
    body = "\n".join(f"  {line}" for line in text.splitlines())
    assert set(places(ast.parse(f"def f():\n{body}"))) == found
