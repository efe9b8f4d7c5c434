"""Data bindings: the YAML that is read, what is refused, and what is written of them."""

import pytest

from penstock.authz.polar.local import Binding, Bindings
from penstock.authz.polar.local_sql import MYSQL, POSTGRESQL, bound, is_column, values
from penstock.authz.service.bindings import BINDINGS_MAX, BYTES_MAX, read_bindings
from penstock.model.errors import InvalidRequestError

PAGE = """
# As the SDK sends it.
facts:
  has_relation(Repository:_, String:parent, Organization:_):   # a comment
    query: SELECT id, org_id FROM repository
  has_relation(Folder:_, parent, Folder:_):
    query: |
      SELECT id,
        parent_id -- not the end
      FROM folder;
  "is_public(Document:_)":
    query: 'SELECT id FROM document WHERE kind = ''open'''
  is_open(ns::Shop:_):
    query: SELECT id
      FROM shop
      WHERE open
  zero():
    query: "SELECT 1"
sql_types:
  Repository: integer
  Folder: character varying(20)
dialect: mysql
"""


def test_what_the_page_shows_is_read():
    found = read_bindings(PAGE)
    assert found == Bindings(
        MYSQL,
        (
            Binding(
                "has_relation",
                ("Repository", "String", "Organization"),
                (None, "parent", None),
                "SELECT id, org_id FROM repository",
            ),
            Binding(
                "has_relation",
                ("Folder", "String", "Folder"),
                (None, "parent", None),
                "SELECT id,\nparent_id -- not the end\nFROM folder",
            ),
            Binding(
                "is_public",
                ("Document",),
                (None,),
                "SELECT id FROM document WHERE kind = 'open'",
            ),
            Binding("is_open", ("ns::Shop",), (None,), "SELECT id FROM shop WHERE open"),
            Binding("zero", (), (), "SELECT 1"),
        ),
        {"Repository": "integer", "Folder": "character varying(20)"},
    )


@pytest.mark.parametrize("text", [None, "", "\n# nothing\n", "facts:\nsql_types:\n"])
def test_nothing_may_be_bound(text):
    assert read_bindings(text) == Bindings(POSTGRESQL)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fact:\n", "'fact' isn't known"),
        ("facts: [a]\n", "line 1: flow collections"),
        ("facts: &a\n", "line 1: flow collections"),
        ("- facts\n", "line 1: a key and a colon"),
        ("facts:\n  f(A:_):\n    query: 'a\n", "a quote isn't closed"),
        ("facts:\n  f(A:_):\n    query: a\n  f(A:_):\n    query: b\n", "line 4: 'f.A:_.' is there"),
        ("facts:\n  f(A:_):\n    other: a\n", "has no query"),
        ("facts:\n  f(_):\n    query: a\n", "has no type"),
        ("facts:\n  f(A B):\n    query: a\n", "isn't TYPE:_"),
        ("facts:\n  f:\n    query: a\n", "isn't a fact"),
        ("facts: text\n", "facts isn't a mapping"),
        ("sql_types:\n  A: integer) OR (1=1\n", "isn't the name of a type"),
        ("dialect: oracle\n", "dialect isn't one of"),
        ("a:\n b:\n  c: d\n   e: f\n", "isn't known"),
        ("x" * (BYTES_MAX + 1), "characters"),
        (
            "facts:\n" + "".join(f"  f{n}():\n    query: a\n" for n in range(BINDINGS_MAX + 1)),
            "1,001 facts",
        ),
    ],
)
def test_what_is_not_valid_is_refused(text, found):
    with pytest.raises(InvalidRequestError, match=found):
        read_bindings(text)


@pytest.mark.parametrize("dialect", [POSTGRESQL, MYSQL])
@pytest.mark.parametrize("text", ["it's", "a\\' OR 1=1 --", 'a"b', "%s", ":x", "ä", "`a`", "?1"])
def test_an_id_that_may_be_sql_is_written_in_hexadecimal(dialect, text):
    written = dialect.literal(text)
    assert text not in written
    assert text.encode().hex() in written
    assert "'plain-1.x@y'" in dialect.literal("plain-1.x@y")


def test_ids_of_a_type_are_compared_as_that_type_where_they_are_of_it():
    def narrowed(ids, kind, dialect=POSTGRESQL):
        text = bound(dialect, "SELECT id FROM t", [None], [(0, frozenset(ids), kind)])
        return text.partition(" IN ")[2].rstrip(")") or text.rpartition(" AND ")[2].rstrip(")")

    assert (
        narrowed(["5", "x' OR '1", "12"], "integer")
        == "(CAST('12' AS integer), CAST('5' AS integer"
    )
    assert narrowed(["x"], "int8") == "1 = 0"
    assert " IN " not in bound(
        POSTGRESQL, "q", [None], [(0, frozenset(["12345678901"]), "integer")]
    )
    uuid = "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f"
    assert narrowed([uuid, "no"], "uuid") == f"(CAST('{uuid}' AS uuid"
    assert " IN " not in bound(POSTGRESQL, "q", [None], [(0, frozenset(["a"]), "money")])
    assert " IN " not in bound(MYSQL, "q", [None], [(0, frozenset(["5"]), "integer")])


def test_rows_without_a_value_are_passed_over():
    text = bound(POSTGRESQL, "SELECT a, b FROM t", [None, "parent", None], [])
    assert text.endswith("WHERE c0 IS NOT NULL AND c2 IS NOT NULL)")


def test_facts_without_arguments_are_a_row():
    assert values(POSTGRESQL, [()]) == "(SELECT 1 AS present)"
    assert bound(POSTGRESQL, "SELECT 1", [], []) == (
        "(WITH penstockq (c) AS (SELECT 1\n) SELECT 1 AS present FROM penstockq)"
    )


@pytest.mark.parametrize("text", ["id", "t.id", 's.t."a b"', "`a`.`b`", "_x$1"])
def test_a_column_is_a_name(text):
    assert is_column(text)


@pytest.mark.parametrize(
    "text", ["", "1", "a b", "a;b", "id) OR (1=1", "a--b", "a.b.c.d.e", "f(x)", '"a', "a'", "a\n"]
)
def test_other_text_is_no_column(text):
    assert not is_column(text)
