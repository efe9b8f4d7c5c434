"""The tables of facts: names, both directions, and that storing twice changes nothing."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.facts import schema
from penstock.authz.polar.program import Signature

ROLE = Signature("has_role", ("User", "String", "Organization"))


@pytest.fixture
def connection():
    opened = sqlite3.connect(":memory:")
    yield opened
    opened.close()


def make(connection, signature):
    for statement in schema.create(signature):
        connection.execute(statement)


def test_a_table_is_named_for_a_person_and_by_its_hash():
    assert schema.table(ROLE) == "fact_has_role_user_string_organization_ae87c81cf9b2c19d"


@given(st.text(max_size=5), st.lists(st.text(max_size=5), max_size=3).map(tuple))
def test_any_signature_has_a_plain_name_of_bounded_length(predicate, types):
    name = schema.table(Signature(predicate, types))
    assert name.isascii()
    assert name.isidentifier()
    assert len(name) < 70


@pytest.mark.parametrize("count", range(6))
def test_facts_are_stored_once_found_by_any_of_their_ids_and_deleted(connection, count):
    signature = Signature("f", ("User",) * count)
    make(connection, signature)
    make(connection, signature)
    ids = [f"id{place}" for place in range(count)]
    for _ in range(2):
        connection.execute(schema.insert(signature), schema.row(ids))
    for bound in [[], *([place] for place in range(count)), list(range(count))]:
        found = connection.execute(schema.select(signature, bound), [ids[p] for p in bound])
        assert found.fetchall() == [schema.row(ids)]
    for place in range(count):
        connection.execute(schema.delete(signature, [place]), ["another"])
    assert connection.execute(schema.delete(signature, range(count)), ids).rowcount == 1


@pytest.mark.parametrize(("bound", "index"), [([0, 1], "PRIMARY KEY"), ([2, 1], "_reverse")])
def test_either_end_has_an_index_with_all_columns(connection, bound, index):
    make(connection, ROLE)
    sql = schema.select(ROLE, bound)
    (step,) = connection.execute(f"EXPLAIN QUERY PLAN {sql}", ["a", "b"]).fetchall()
    assert step[3].startswith("SEARCH")
    assert index in step[3]
