"""Values and facts as they come from outside, and how values compare."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

from penstock.authz.polar.program import Fact, Program, Signature, Value
from penstock.model.errors import InvalidRequestError

ID_BYTES_MAX: Final = 384
SHOWN_SIGNATURES_MAX: Final = 20
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_OPERATORS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
}
_ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(sign: str, left: str, right: str) -> bool:
    """Whether a comparison holds; an order compares Integers."""
    if sign in _OPERATORS:
        return _OPERATORS[sign](left, right)
    return _ORDERS[sign](int(left), int(right))


def check_value(value: Value) -> None:
    """Check a value of a fact or a question.

    Raises:
        InvalidRequestError: it has no type or id, or its id isn't one of its type.
    """
    if not value.type or not value.id:
        raise _invalid("type and id of a value must not be empty")
    is_ascii = value.id.isascii()
    if "\0" in value.id or (not is_ascii and _has_surrogates(value.id)):
        raise _invalid("an id has no NUL and no lone surrogate")
    byte_count = len(value.id) if is_ascii else len(value.id.encode())
    if byte_count > ID_BYTES_MAX:
        raise _invalid(f"an id has at most {ID_BYTES_MAX} bytes, not {byte_count:,}")
    if value.type == "Integer" and not is_integer(value.id):
        raise _invalid(f"{value.id[:50]!r} is not an Integer in its shortest decimal form")
    if value.type == "Boolean" and value.id not in ("true", "false"):
        raise _invalid(f"{value.id[:50]!r} is not a Boolean: true or false")


def is_integer(text: str) -> bool:
    """Whether it is the shortest decimal form of a 64-bit integer."""
    return bool(_INTEGER.fullmatch(text)) and -(1 << 63) <= int(text) < 1 << 63


def check_fact(program: Program, fact: Fact) -> None:
    """Check that a policy accepts a fact.

    Raises:
        InvalidRequestError: it doesn't; the message lists what it accepts.
    """
    for value in fact.arguments:
        check_value(value)
    if fact.signature in program.facts:
        return
    accepted = sorted(str(each) for each in program.facts if each.predicate == fact.predicate)
    shown = ", ".join(accepted[:SHOWN_SIGNATURES_MAX])
    if len(accepted) > SHOWN_SIGNATURES_MAX:
        shown += f" and {len(accepted) - SHOWN_SIGNATURES_MAX} more"
    raise InvalidRequestError(
        "check",
        "fact",
        f"the policy has no fact {_shown(fact.signature)}",
        f"it accepts {shown}" if accepted else "no rule or declaration mentions this predicate",
    )


def _shown(signature: Signature) -> str:
    return str(Signature(signature.predicate[:100], tuple(each[:100] for each in signature.types)))


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= each <= "\udfff" for each in text)


def _invalid(detail: str) -> InvalidRequestError:
    return InvalidRequestError("check", "value", detail)
