"""Policies and facts for tests of the authorization language."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.authz.polar.naive import Naive
from penstock.authz.polar.program import Fact, Program, Value

NOW_S = 1_800_000_000
POLICIES: Mapping[str, str] = {
    path.stem: path.read_text("utf-8")
    for path in sorted((Path(__file__).parent / "policies").glob("*.polar"))
}
"""The ten policies that the language has to hold, by name."""


def value(text: str) -> Value:
    """`User:alice` as a value; a text without a type is a String."""
    kind, colon, id_ = text.partition(":")
    return Value(kind, id_) if colon else Value("String", text)


def fact(predicate: str, *arguments: str) -> Fact:
    return Fact(predicate, tuple(map(value, arguments)))


def naive(program: Program, facts: Iterable[Fact]) -> Naive:
    return Naive(program, facts, now_s=NOW_S)
