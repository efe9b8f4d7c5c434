"""A policy as text, in one form. Comments between parts stay where they are; a part that has
comments inside stays as it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Span
from penstock.authz.polar.lexer import comments, escape
from penstock.authz.polar.parser import RESERVED, parse

LINE_COLUMNS: Final = 100
_INDENT: Final = "  "


def format_source(source: str) -> str:
    """Write a policy in the one form, with its comments.

    Raises:
        PolicyError: the source isn't Polar.
    """
    found = comments(source)
    written: list[str] = []
    before = ""
    end = 0
    for part in parse(source).parts:
        lines = _between(source, found, written, end, part.span.start)
        inside = [each for each in found if part.span.start < each.start < part.span.end]
        del found[: len(inside)]
        text = source[part.span.start : part.span.end] if inside else format_part(part)
        if before and (lines or _is_apart(before, text)):
            written.append("")
        written += [*lines, text]
        before, end = text, part.span.end
    lines = _between(source, found, written, end, len(source))
    if before and lines:
        written.append("")
    written += lines
    return "\n".join(written) + ("\n" if written else "")


def _between(source: str, found: list[Span], written: list[str], start: int, end: int) -> list[str]:
    """Take the comments before `end` out of `found`. One that stands on the line of the part
    before stays there; the others' lines are returned."""
    taken = [each for each in found if each.start < end]
    del found[: len(taken)]
    if taken and written and "\n" not in source[start : taken[0].start]:
        first = taken.pop(0)
        written[-1] += f"  {source[first.start : first.end].rstrip()}"
    return [source[each.start : each.end].rstrip() for each in taken]


def format_policy(policy: syntax.Policy) -> str:
    """Write a policy; reading the text again gives an equal one."""
    written: list[str] = []
    before = ""
    for part in policy.parts:
        text = format_part(part)
        if before and _is_apart(before, text):
            written.append("")
        written.append(text)
        before = text
    return "\n".join(written) + ("\n" if written else "")


def format_part(part: syntax.Part) -> str:
    """Write one block, rule, declaration or test, without a newline at its end."""
    match part:
        case syntax.Block():
            return "\n".join(_block(part))
        case syntax.Rule():
            head = _call_text(part.name.text, map(_parameter, part.parameters))
            return _ruled(head, part.body)
        case syntax.RuleType():
            return f"type {_call_text(part.name.text, map(_parameter, part.parameters))};"
        case syntax.Declare():
            return f"declare {_call_text(part.name.text, (each.text for each in part.types))};"
        case syntax.InlineQuery():
            return f"?= {expression(part.body)};"
        case syntax.Fixture():
            return _braces(f"test fixture {part.name.text}", (f"{_call(f)};" for f in part.facts))
        case syntax.Test():
            return _braces(f"test {_quoted(part.name.text)}", _test_lines(part))


def expression(part: syntax.Expression) -> str:
    """Write an expression on one line."""
    match part:
        case syntax.Or():
            return " or ".join(map(expression, part.parts))
        case syntax.And():
            return " and ".join(
                f"({expression(each)})" if isinstance(each, syntax.Or) else expression(each)
                for each in part.parts
            )
        case syntax.Not():
            inner = expression(part.part)
            compound = isinstance(part.part, syntax.And | syntax.Or)
            return f"not ({inner})" if compound else f"not {inner}"
        case syntax.Call():
            return _call(part)
        case syntax.Truth():
            return "true" if part.value else "false"
        case syntax.Compare():
            return f"{term(part.left)} {part.operator} {term(part.right)}"
        case syntax.In():
            return f"{term(part.term)} in {term(part.items)}"
        case syntax.Matches():
            mark = "!" if part.exact else ""
            return f"{term(part.term)} matches{mark} {part.type.text}"


def term(part: syntax.Term) -> str:
    """Write a term."""
    match part:
        case syntax.Variable():
            return f"{part.name}: {part.type.text}" if part.type else part.name
        case syntax.Now():
            return "@current_unix_time"
        case syntax.Items():
            return f"[{', '.join(map(term, part.items))}]"
        case syntax.Value("String"):
            return _quoted(part.id)
        case syntax.Value("Integer" | "Boolean"):
            return part.id
        case syntax.Value():
            return f"{part.type}{{{_quoted(part.id)}}}"


def _is_apart(before: str, text: str) -> bool:
    """Whether a blank line separates two parts: rules of one line each stay together."""
    starts = [each.partition(" ")[0] for each in (before, text)]
    are_rules = all("(" in start or start in ("declare", "type") for start in starts)
    return not are_rules or "\n" in before or "\n" in text


def _quoted(text: str) -> str:
    return f'"{escape(text)}"'


def _call(call: syntax.Call) -> str:
    return _call_text(call.name.text, map(term, call.arguments))


def _call_text(name: str, arguments: Iterable[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def _parameter(parameter: syntax.Parameter) -> str:
    text = term(parameter.term)
    return f"{text}: {parameter.type.text}" if parameter.type else text


def _ruled(head: str, body: syntax.Expression | None) -> str:
    if body is None:
        return f"{head};"
    line = f"{head} if {expression(body)};"
    if len(line) <= LINE_COLUMNS:
        return line
    word = " and" if isinstance(body, syntax.And) else " or"
    parts = [
        f"({expression(each)})"
        if isinstance(each, syntax.Or) and isinstance(body, syntax.And)
        else expression(each)
        for each in (body.parts if isinstance(body, syntax.And | syntax.Or) else (body,))
    ]
    joined = f"{word}\n{_INDENT}".join(parts)
    return f"{head} if\n{_INDENT}{joined};"


def _braces(head: str, lines: Iterable[str]) -> str:
    inner = [f"{_INDENT}{line}" for line in lines]
    return "\n".join([f"{head} {{", *inner, "}"]) if inner else f"{head} {{}}"


def _test_lines(test: syntax.Test) -> Iterator[str]:
    if test.setup:
        yield "setup {"
        for item in test.setup:
            text = _call(item) if isinstance(item, syntax.Call) else f"fixture {item.name.text}"
            yield f"{_INDENT}{text};"
        yield "}"
    for assertion in test.assertions:
        word = "assert" if assertion.expected else "assert_not"
        iff = f" iff {expression(assertion.iff)}" if assertion.iff is not None else ""
        line = f"{word} {_call(assertion.call)}{iff};"
        if iff and len(line) + len(_INDENT) > LINE_COLUMNS:
            line = line.replace(iff, f" iff\n{_INDENT * 2}{iff.removeprefix(' iff ')}")
        yield line


def _block(block: syntax.Block) -> Iterator[str]:
    head = "global" if block.kind == "global" else f"{block.kind} {block.name.text}"
    if block.extends:
        head += f" extends {', '.join(each.text for each in block.extends)}"
    if not block.items:
        yield f"{head} {{}}"
        return
    yield f"{head} {{"
    before: syntax.BlockItem | None = None
    for item in block.items:
        if isinstance(item, syntax.ShorthandRule) and isinstance(
            before, syntax.Names | syntax.Relations
        ):
            yield ""
        yield f"{_INDENT}{_block_item(item)}"
        before = item
    yield "}"


def _block_item(item: syntax.BlockItem) -> str:
    match item:
        case syntax.Names():
            return f"{item.kind} = [{', '.join(_quoted(each.text) for each in item.names)}];"
        case syntax.Relations():
            relations = (f"{_key(each.name.text)}: {each.type.text}" for each in item.relations)
            return (
                f"relations = {{ {', '.join(relations)} }};"
                if item.relations
                else ("relations = {};")
            )
        case syntax.ShorthandRule():
            head = item.head.text if item.is_name else _quoted(item.head.text)
            return f"{head} if {_shorthand(item.body)};"


def _key(text: str) -> str:
    return (
        text if re.fullmatch(r"[a-z][a-z0-9_]*", text) and text not in RESERVED else _quoted(text)
    )


def _shorthand(part: syntax.Shorthand) -> str:
    match part:
        case syntax.ShortOr():
            return " or ".join(map(_shorthand, part.parts))
        case syntax.ShortAnd():
            return " and ".join(
                f"({_shorthand(each)})" if isinstance(each, syntax.ShortOr) else _shorthand(each)
                for each in part.parts
            )
        case syntax.Call():
            return _call(part)
        case syntax.Step():
            text = part.text.text if part.is_name else _quoted(part.text.text)
            on = f" on {_quoted(part.on.text)}" if part.on else ""
            return f"{'global ' if part.is_global else ''}{text}{on}"
