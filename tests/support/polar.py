"""Policies and facts for tests of the authorization language."""

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.authz.facts import schema
from penstock.authz.facts.asking import Asking, Plans
from penstock.authz.polar.program import Fact, Program, Value
from penstock.authz.polar.tabled import MemoryFacts, Tabled
from support.twins.polar import Naive

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


def tabled(program: Program, facts: Iterable[Fact]) -> Tabled:
    return Tabled(program, MemoryFacts(facts), now_s=NOW_S)


def store(program: Program, facts: Iterable[Fact]) -> sqlite3.Connection:
    """A database with these facts; those that the program doesn't accept are left out."""
    connection = sqlite3.connect(":memory:")
    for signature in program.facts:
        for statement in schema.create(signature):
            connection.execute(statement)
    for each in facts:
        if each.signature in program.facts:
            connection.execute(schema.insert(each.signature), schema.row(each.ids))
    return connection


def compiled(program: Program, facts: Iterable[Fact], context: Iterable[Fact] = ()) -> Asking:
    connection = store(program, facts)
    return Asking(Plans(program), connection, now_s=NOW_S, context=context)
