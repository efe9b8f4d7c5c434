"""A goal's constants leave the clauses whose heads may match, and no others of that constant."""

from penstock.authz.polar.check import check
from penstock.authz.polar.clause_index import ClauseIndex
from penstock.authz.polar.program import Signature


def test_clauses_are_found_by_a_constant_or_a_variable_there():
    program = check(
        'actor U {} f("a", x: U) if g(x); f("b", x: U) if g(x); f(_: String, x: U) if h(x);'
    )
    signature = Signature("f", ("String", "U"))
    index = ClauseIndex(program)

    def heads(*constants):
        return [each.head.terms[0] for each in index.candidates(signature, constants)]

    assert heads("a", None) == ["a", 0]
    assert heads("b", "1") == ["b", 0]
    assert heads("c", None) == [0]
    assert heads(None, None) == ["a", "b", 0]
    assert index.candidates(Signature("nothing", ()), ()) == ()
