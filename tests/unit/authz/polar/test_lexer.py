"""Tokens: each kind, where each stands, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.polar.errors import PolicyError
from penstock.authz.polar.lexer import SOURCE_BYTES_MAX, Kind, comments, escape, tokenize, unescape


def texts(source):
    return [(token.kind, token.text) for token in tokenize(source)[:-1]]


def test_each_kind_of_token():
    source = 'has_role(a: ns::User?, "x\\"y", -12) ?= != @now # end'
    assert texts(source) == [
        (Kind.NAME, "has_role"),
        (Kind.MARK, "("),
        (Kind.NAME, "a"),
        (Kind.MARK, ":"),
        (Kind.NAME, "ns::User?"),
        (Kind.MARK, ","),
        (Kind.STRING, 'x"y'),
        (Kind.MARK, ","),
        (Kind.INTEGER, "-12"),
        (Kind.MARK, ")"),
        (Kind.MARK, "?="),
        (Kind.MARK, "!="),
        (Kind.FLAG, "@now"),
    ]


@pytest.mark.parametrize("name", ["größe", "名前", "_x", "a1", "is_public?", "a::b::c"])
def test_names_may_be_unicode(name):
    assert texts(name) == [(Kind.NAME, name)]


def test_a_token_says_where_it_stands():
    token = tokenize("  ab cd")[1]
    assert (token.span.start, token.span.end) == (5, 7)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('x("a\nb")', "unterminated string"),
        ('"', "unterminated string"),
        ("a $ b", "unexpected character '$'"),
        ("1.5", "has to be an Integer"),
        ("1e3", "has to be an Integer"),
        ("9223372036854775808", "64 bits"),
        ("9" * 100_000, "64 bits"),
    ],
)
def test_what_is_not_a_token_is_refused(source, message):
    with pytest.raises(PolicyError, match=message.replace("$", r"\$")):
        tokenize(source)


def test_integers_are_written_in_their_shortest_form():
    assert texts("+007 -0 -9223372036854775808") == [
        (Kind.INTEGER, "7"),
        (Kind.INTEGER, "0"),
        (Kind.INTEGER, "-9223372036854775808"),
    ]


def test_a_source_of_too_many_bytes_is_refused_by_its_bytes():
    assert len(tokenize("#" + "a" * (SOURCE_BYTES_MAX - 1))) == 1
    with pytest.raises(PolicyError, match="longer than 1,048,576 bytes"):
        tokenize("#" + "é" * (SOURCE_BYTES_MAX // 2))


@pytest.mark.slow
def test_a_huge_string_is_one_token():
    (token, _) = tokenize('"' + "\\a" * 500_000 + '"')
    assert token.text == "a" * 500_000
    assert len(token.shown) < 60


def test_comments_are_found_and_not_in_strings():
    source = 'a # one\n"# no" # two'
    assert [source[each.start : each.end] for each in comments(source)] == ["# one", "# two"]


@given(st.text())
def test_unescape_undoes_escape(text):
    assert unescape(escape(text)) == text


@given(st.text(max_size=50))
def test_any_text_is_read_or_refused(text):
    try:
        tokens = tokenize(text)
    except PolicyError as error:
        assert error.diagnostics[0].render(text)
    else:
        assert tokens[-1].kind is Kind.END
