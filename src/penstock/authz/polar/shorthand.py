"""Shorthand rules of blocks as rules: docs/authz-polar.md, "Shorthand rules"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Diagnostic, Span
from penstock.authz.polar.types import GLOBAL, Declared, Types

GENERIC: Final = {"role": "has_role", "permission": "has_permission"}
"""Names without quotes that stand for each role or permission that both types declare."""

_ACTOR: Final = syntax.Variable("actor")
_RESOURCE: Final = syntax.Variable("resource")


class _UndeclaredError(Exception):
    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(message, span)


def expand(block: syntax.Block, types: Types, wrong: list[Diagnostic]) -> Iterator[syntax.Rule]:
    """Yield the rules that a block's shorthand stands for; what is wrong is added to `wrong`."""
    for item in block.items:
        if not isinstance(item, syntax.ShorthandRule):
            continue
        try:
            yield from _rules(block, item, types)
        except _UndeclaredError as error:
            wrong.append(error.diagnostic)


def _rules(block: syntax.Block, item: syntax.ShorthandRule, types: Types) -> Iterator[syntax.Rule]:
    own = types.whole[block.name.text]
    if not item.is_name:
        yield _Writer(block, item, types, own).rule(item.head.text)
        return
    if item.head.text not in GENERIC:
        raise _UndeclaredError(
            f"undeclared {item.head.text[:100]}: a head is a string, `role` or `permission`",
            item.head.span,
        )
    names = own.roles if item.head.text == "role" else own.permissions
    for name in names:
        writer = _Writer(block, item, types, own)
        rule = writer.rule(name)
        if writer.is_shared:
            yield rule


class _Writer:
    """Writes the rule of one head.

    `is_shared` is false once the head's name isn't declared where a generic step needs it.
    """

    def __init__(
        self, block: syntax.Block, item: syntax.ShorthandRule, types: Types, own: Declared
    ) -> None:
        self._block = block
        self._item = item
        self._types = types
        self._own = own
        self._is_global = block.kind == GLOBAL
        self._step_count = 0
        self._head = ""
        self.is_shared = True

    def rule(self, head: str) -> syntax.Rule:
        self._head = head
        kind = self._declared_kind(syntax.Name(head, self._item.head.span))
        body = self._expression(self._item.body)
        string = syntax.Parameter(syntax.Value("String", head))
        actor = syntax.Parameter(_ACTOR, syntax.Name("Actor"))
        if kind == "has_relation":
            target = syntax.Parameter(_ACTOR, syntax.Name(self._own.relations[head]))
            parameters: tuple[syntax.Parameter, ...] = (self._resource_parameter(), string, target)
        elif self._is_global:
            parameters = (actor, string)
        else:
            parameters = (actor, string, self._resource_parameter())
        span = self._item.span
        return syntax.Rule(syntax.Name(kind, self._item.head.span), parameters, body, span)

    def _resource_parameter(self) -> syntax.Parameter:
        return syntax.Parameter(_RESOURCE, syntax.Name(self._block.name.text))

    def _declared_kind(self, name: syntax.Name) -> str:
        kind = self._own.kind(name.text)
        if kind is None:
            raise _UndeclaredError(
                f'undeclared "{name.text[:100]}": {self._block.name.text[:100]} declares no role, '
                "permission or relation of this name",
                name.span,
            )
        return kind

    def _expression(self, part: syntax.Shorthand) -> syntax.Expression:
        match part:
            case syntax.Call():
                return part
            case syntax.ShortAnd():
                return syntax.And(tuple(map(self._expression, part.parts)))
            case syntax.ShortOr():
                return syntax.Or(tuple(map(self._expression, part.parts)))
            case syntax.Step(on=None, is_global=False):
                return self._own_step(part)
            case syntax.Step(is_global=True):
                return self._global_step(part)
            case _:
                return self._related_step(part)

    def _text(self, step: syntax.Step) -> syntax.Name:
        """Give the name that a step is about: the head's, for `role` in a rule for each role."""
        if not step.is_name:
            return step.text
        if not self._item.is_name or step.text.text != self._item.head.text:
            raise _UndeclaredError(
                f"undeclared {step.text.text[:100]}: a step is a string, a call, or the head's "
                "name",
                step.text.span,
            )
        return syntax.Name(self._head, step.text.span)

    def _own_step(self, step: syntax.Step) -> syntax.Expression:
        name = self._text(step)
        kind = self._declared_kind(name)
        if kind == "has_relation":
            target = syntax.Name(self._own.relations[name.text], name.span)
            return syntax.And(
                (
                    syntax.Matches(_ACTOR, target, span=step.span),
                    _call(kind, _RESOURCE, _string(name), _ACTOR, span=step.span),
                )
            )
        if self._is_global:
            return _call(kind, _ACTOR, _string(name), span=step.span)
        return _call(kind, _ACTOR, _string(name), _RESOURCE, span=step.span)

    def _global_step(self, step: syntax.Step) -> syntax.Expression:
        name = self._text(step)
        kind = self._types.whole[GLOBAL].kind(name.text)
        if kind is None:
            raise _UndeclaredError(
                f'undeclared global "{name.text[:100]}": the global block declares no role or '
                "permission of this name",
                name.span,
            )
        return _call(kind, _ACTOR, _string(name), span=step.span)

    def _related_step(self, step: syntax.Step) -> syntax.Expression:
        assert step.on is not None
        if self._is_global:
            raise _UndeclaredError("`on` in the global block, which has no relations", step.on.span)
        target = self._own.relations.get(step.on.text)
        if target is None:
            raise _UndeclaredError(
                f'undeclared relation "{step.on.text[:100]}" of {self._block.name.text[:100]}',
                step.on.span,
            )
        self._step_count += 1
        # No source has a variable of this name.
        related = syntax.Variable(f"{step.on.text}#{self._step_count}")
        name = self._text(step)
        kinds = self._kinds_on(target, name.text)
        if step.is_name and not kinds:
            self.is_shared = False
        elif not kinds:
            raise _UndeclaredError(
                f'undeclared "{name.text[:100]}": {target[:100]} declares no role, permission or '
                "relation of this name",
                name.span,
            )
        calls: list[syntax.Expression] = []
        for kind in kinds:
            if kind == "has_relation":
                calls.append(_call(kind, related, _string(name), _ACTOR, span=step.span))
            else:
                calls.append(_call(kind, _ACTOR, _string(name), related, span=step.span))
        return syntax.And(
            (
                syntax.Matches(related, syntax.Name(target, step.on.span), span=step.span),
                _call("has_relation", _RESOURCE, _string(step.on), related, span=step.span),
                syntax.Or(tuple(calls)) if len(calls) != 1 else calls[0],
            )
        )

    def _kinds_on(self, target: str, name: str) -> list[str]:
        """Give the predicates that a name picks on a type; on its subtypes if it has none."""
        whole = self._types.whole
        if target in whole:
            kind = whole[target].kind(name)
            if kind is not None:
                return [kind]
        below: Callable[[str], str | None] = lambda each: whole[each].kind(name)  # noqa: E731
        found = [below(each) for each in self._types.concrete(target) if each in whole]
        return sorted({kind for kind in found if kind is not None})


def _string(name: syntax.Name) -> syntax.Value:
    return syntax.Value("String", name.text, name.span)


def _call(kind: str, *arguments: syntax.Term, span: Span) -> syntax.Call:
    return syntax.Call(syntax.Name(kind, span), arguments, span)
