"""SQL of local authorization, run by a real PostgreSQL, gives the service's own answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oso_cloud import Oso, Value, typed_var
from oso_cloud.api import OsoException

from penstock.authz.facts.asking import Asking, Plans
from penstock.authz.polar.local import Binding, Bindings
from penstock.authz.polar.local_sql import POSTGRESQL
from penstock.authz.polar.program import Fact, Program
from penstock.authz.polar.query import Question, rows
from penstock.authz.service.local import _Central, _Writing
from penstock.model.errors import InvalidRequestError
from support.authz import POLICY, TEST_KEY, AuthzProcess
from support.examples import examples
from support.polar import store
from support.random_policies import random_facts, random_program, random_question

FACTS = 25
QUESTIONS = 4
COUNTS = {"asked": 0, "refused": 0}


@pytest.fixture(scope="module")
def database(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def bound_and_central(
    random: Random, program: Program, facts: list[Fact], database: psycopg.Connection[Any]
) -> tuple[list[Binding], list[Fact]]:
    """Put some facts into tables; give the bindings, and what is left."""
    bindings: list[Binding] = []
    central = list(facts)
    database.execute("DROP SCHEMA IF EXISTS local CASCADE")
    database.execute("CREATE SCHEMA local")
    for number, signature in enumerate(sorted(program.facts)):
        if random.random() < 0.5:
            continue
        constants = tuple(
            "member" if kind == "String" and random.random() < 0.5 else None
            for kind in signature.types
        )
        places = [place for place, constant in enumerate(constants) if constant is None]
        columns = ", ".join(f"x{place} TEXT" for place in places) or "x INT"
        database.execute(f"CREATE TABLE local.f{number} ({columns})".encode())
        names = ", ".join(f"x{place}" for place in places) or "x"
        binding = Binding(
            signature.predicate,
            signature.types,
            constants,
            f"SELECT {names} FROM local.f{number} -- of the customer's",
        )
        bindings.append(binding)
        here = [f for f in facts if f.signature == signature and binding.has(f.ids)]
        for fact in here:
            values = [fact.ids[place] for place in places] or [1]
            marks = ", ".join("%s" for _ in values)
            database.execute(f"INSERT INTO local.f{number} VALUES ({marks})".encode(), values)
            # What is both here and there is the customer's.
            if random.random() < 0.9:
                central = [each for each in central if each != fact]
        if places and random.random() < 0.5:
            nulls = ", ".join("NULL" for _ in places)
            database.execute(f"INSERT INTO local.f{number} VALUES ({nulls})".encode())
    return bindings, central


@pytest.mark.slow
@settings(max_examples=examples(0.2))
@given(seed=st.integers(0, 1 << 32))
def test_rows_are_the_services_own(seed: int, database: psycopg.Connection[Any]) -> None:
    random = Random(seed)
    program = random_program(random)
    facts = random_facts(random, program, FACTS)
    bindings, central = bound_and_central(random, program, facts, database)
    context = [fact for fact in central if random.random() < 0.2]
    now_s = int(time.time())
    everything = Asking(Plans(program), store(program, facts), now_s=now_s)
    stored = store(program, [fact for fact in central if fact not in context])
    asking = Asking(Plans(program), stored, now_s=now_s)
    for _ in range(QUESTIONS):
        question = random_question(random, program)
        names = list(question.constraints)
        wanted = {tuple(row[name] for name in names) for row in rows(program, everything, question)}
        writing = _Writing(
            program, Bindings(POSTGRESQL, tuple(bindings)), _Central(asking, context)
        )
        COUNTS["asked"] += 1
        try:
            sql = writing.rows(question, names) if names else ""
            test = writing.test(question)
        except InvalidRequestError as error:
            assert "one statement can't say" in error.detail
            COUNTS["refused"] += 1
            continue
        try:
            if names:
                assert set(database.execute(sql.encode()).fetchall()) == wanted
            ((holds,),) = database.execute(f"SELECT {test}".encode()).fetchall()
            assert holds == bool(wanted)
            _check_condition(writing, question, wanted, database)
        except psycopg.Error as error:
            raise AssertionError(f"{error}\n{len(sql)} {len(test)}") from error


def _check_condition(
    writing: _Writing,
    question: Question,
    wanted: set[tuple[str | None, ...]],
    database: psycopg.Connection[Any],
) -> None:
    """A condition on a column holds for the values of a variable, or for all."""
    for place, name in enumerate(question.constraints):
        condition = writing.condition(question, name, "ids.id")
        ids = ["1", "2", "3", "4", "' OR 1=1 --", "member", "other"]
        sql = f"SELECT id FROM unnest(%s::text[]) AS ids(id) WHERE {condition.replace('%', '%%')}"
        found = {id_ for (id_,) in database.execute(sql.encode(), [ids])}
        values = {row[place] for row in wanted}
        assert found == (set(ids) if None in values else values & set(ids))


def test_most_questions_have_sql() -> None:
    assert COUNTS["refused"] <= COUNTS["asked"] // 2


EVIL = [
    "1' OR '1'='1",
    "x'); DROP TABLE repository; --",
    "a\\' OR 1=1 --",
    '"; SELECT 1',
    "%s :id $$",
]
BINDINGS = """
facts:
  has_relation(Repository:_, String:organization, Organization:_):
    query: >
      SELECT id, org
      FROM repository  -- the customer's own
sql_types:
  Repository: text
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthzProcess]:
    folder = tmp_path_factory.mktemp("authz")
    server = AuthzProcess(folder / "data", folder / "log", "--test-key")
    server.start()
    try:
        yield server
    finally:
        assert server.stop() == 0, server.tail()


def test_the_sdks_local_methods_and_ids_that_are_sql(
    server: AuthzProcess, database: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """Each id is a user, an organization and a repository; who has one has no other."""
    (tmp_path / "bindings.yaml").write_text(BINDINGS)
    oso = Oso(url=server.url, api_key=TEST_KEY, data_bindings=str(tmp_path / "bindings.yaml"))
    ids = [*EVIL, "plain"]
    database.execute("DROP TABLE IF EXISTS repository")
    database.execute("CREATE TABLE repository (id TEXT, org TEXT)")
    try:
        oso.policy(POLICY)
        with oso.batch() as batch:
            for id_ in ids:
                role = "admin" if id_ == "plain" else "member"
                batch.insert(("has_role", Value("User", id_), role, Value("Organization", id_)))
                database.execute("INSERT INTO repository VALUES (%s, %s)", [id_, id_])
        for id_ in ids:
            user = Value("User", id_)
            own, other = Value("Repository", id_), Value("Repository", "another")
            for repository, allowed in ((own, True), (other, False)):
                sql = oso.authorize_local(user, "read", repository)
                assert _rows(database, sql) == [("allowed", allowed)]
            condition = oso.list_local(user, "read", "Repository", "repository.id")
            assert _rows(database, f"SELECT id FROM repository WHERE {condition}") == [("id", id_)]
            actions = ["push", "read"] if id_ == "plain" else ["read"]
            found = _rows(database, oso.actions_local(user, own))
            assert sorted(found) == [("actions", action) for action in actions]
            repository_var = typed_var("Repository")
            query = oso.build_query(("allow", user, "read", repository_var))
            sql = query.evaluate_local_select({"repository_id": repository_var})
            assert _rows(database, sql) == [("repository_id", id_)]
            assert _rows(database, query.evaluate_local_select()) == [("result", True)]
            condition = query.evaluate_local_filter("repository.id", repository_var)
            assert _rows(database, f"SELECT id FROM repository WHERE {condition}") == [("id", id_)]
            # Context facts are literals as the stored ones are.
            context = [("has_role", Value("User", "guest"), "reader", other)]
            sql = oso.authorize_local(Value("User", "guest"), "read", other, context_facts=context)
            assert _rows(database, sql) == [("allowed", True)]
        with pytest.raises(OsoException) as caught:
            oso.list_local(Value("User", "a"), "read", "Repository", "id) OR (1=1")
        assert caught.value.status_code == 400
        assert len(_rows(database, "SELECT id FROM repository")) == len(ids)
    finally:
        oso.api.session.close()


def _rows(database: psycopg.Connection[Any], sql: str) -> list[tuple[str, Any]]:
    """The rows of one column, with its name."""
    cursor = database.execute(sql.encode())
    assert cursor.description is not None
    return [(cursor.description[0].name, value) for (value,) in cursor.fetchall()]
