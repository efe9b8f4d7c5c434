"""Tokens to a `Policy`: docs/authz-polar.md, "Grammar". The first error ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from penstock.authz.polar import syntax
from penstock.authz.polar.errors import Diagnostic, PolicyError, Span
from penstock.authz.polar.lexer import Kind, Token, tokenize

NESTING_MAX: Final = 64
PARAMETERS_MAX: Final = 10

RESERVED: Final = frozenset(["if", "and", "or", "not", "in", "matches", "true", "false"])
COMPARISONS: Final = frozenset(["=", "!=", "<", "<=", ">", ">="])
PRIMITIVES: Final = frozenset(["String", "Integer", "Boolean"])

T = TypeVar("T")


def parse(source: str) -> syntax.Policy:
    """Read a policy.

    Raises:
        PolicyError: the source isn't Polar; says where, and what was expected.
    """
    return _Parser(source).policy()


def parse_expression(source: str) -> syntax.Expression:
    """Read one expression, as it stands in a rule's body."""
    parser = _Parser(source)
    found = parser.expression()
    parser.expect_end()
    return found


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = tokenize(source)
        self._index = 0
        self._depth = 0

    # --- The top

    def policy(self) -> syntax.Policy:
        parts: list[syntax.Part] = []
        while self._next.kind is not Kind.END:
            if not self._take(";"):
                parts.append(self._part())
        return syntax.Policy(tuple(parts))

    def expect_end(self) -> None:
        if self._next.kind is not Kind.END:
            self._expected("the end")

    def _part(self) -> syntax.Part:
        start = self._next.span.start
        if self._take("?="):
            body = self.expression()
            self._end("the query")
            return syntax.InlineQuery(body, self._since(start))
        while self._next.kind is Kind.FLAG:
            self._advance()
        word = self._next.text if self._next.kind is Kind.NAME else ""
        after = self._peek(1)
        if after.kind is Kind.NAME and word in ("actor", "resource"):
            return self._block(start)
        if word == "global" and after.text == "{" and after.kind is Kind.MARK:
            return self._block(start)
        if word == "test" and after.kind in (Kind.STRING, Kind.NAME):
            return self._test_or_fixture(start)
        if word == "declare" and after.kind is Kind.NAME:
            self._advance()
            name = self._name("a predicate")
            types = self._listed("(", ")", lambda: self._name("a type"), parameters=True)
            self._end("the declaration")
            return syntax.Declare(name, types, self._since(start))
        if word == "type" and after.kind is Kind.NAME:
            self._advance()
            name = self._name("a predicate")
            parameters = self._listed("(", ")", self._parameter, parameters=True)
            self._end("the rule type")
            return syntax.RuleType(name, parameters, self._since(start))
        if not word:
            self._expected("a block, a rule, a declaration or a test")
        return self._rule(start)

    def _rule(self, start: int) -> syntax.Rule:
        name = self._name("a rule")
        parameters = self._listed("(", ")", self._parameter, parameters=True)
        body = self.expression() if self._take_word("if") else None
        if body is None and not self._is(";"):
            self._expected("`if` or `;`")
        self._end("the rule")
        return syntax.Rule(name, parameters, body, self._since(start))

    def _parameter(self) -> syntax.Parameter:
        start = self._next.span.start
        term = self._term()
        if not isinstance(term, syntax.Variable | syntax.Value):
            self._fail("a parameter is a variable or a literal", self._since(start))
        kind = None
        if isinstance(term, syntax.Variable) and self._take(":"):
            kind = self._name("a type")
        return syntax.Parameter(term, kind, self._since(start))

    # --- Blocks

    def _block(self, start: int) -> syntax.Block:
        word = self._advance()
        extends: list[syntax.Name] = []
        if word.text == "global":
            name = syntax.Name("global", word.span)
        else:
            name = self._name("a type")
            if self._take_word("extends"):
                extends.append(self._name("a type"))
                while self._take(",") and not self._is("{"):
                    extends.append(self._name("a type"))
        self._expect("{")
        items: list[syntax.BlockItem] = []
        while not self._take("}"):
            if not self._take(";"):
                items.append(self._block_item())
        return syntax.Block(word.text, name, tuple(extends), tuple(items), self._since(start))

    def _block_item(self) -> syntax.BlockItem:
        start = self._next.span.start
        word = self._next.text if self._next.kind is Kind.NAME else ""
        if self._peek(1).text == "=" and self._peek(1).kind is Kind.MARK and word:
            self._advance()
            self._advance()
            item: syntax.BlockItem
            if word in ("roles", "permissions"):
                names = self._listed("[", "]", self._string)
                item = syntax.Names(word, names, self._since(start))
            elif word == "relations":
                item = syntax.Relations(self._listed("{", "}", self._relation), self._since(start))
            else:
                self._fail(
                    f"unexpected declaration `{word}`: expected roles, permissions or relations",
                    self._since(start),
                )
            self._end("the declaration")
            return item
        head, is_name = self._string_or_name("a declaration, a shorthand rule or `}`")
        if not self._take_word("if"):
            self._expected("`if`")
        body = self._shorthand()
        self._end("the shorthand rule")
        return syntax.ShorthandRule(head, is_name, body, self._since(start))

    def _relation(self) -> syntax.Relation:
        name, _ = self._string_or_name("a relation")
        self._expect(":")
        return syntax.Relation(name, self._name("a type"))

    def _shorthand(self) -> syntax.Shorthand:
        with _Nested(self):
            parts = [self._shorthand_and()]
            while self._take_word("or"):
                parts.append(self._shorthand_and())
        if len(parts) == 1:
            return parts[0]
        flat: list[syntax.Shorthand] = []
        for part in parts:
            flat += part.parts if isinstance(part, syntax.ShortOr) else [part]
        return syntax.ShortOr(tuple(flat))

    def _shorthand_and(self) -> syntax.Shorthand:
        parts = [self._step()]
        while self._take_word("and"):
            parts.append(self._step())
        if len(parts) == 1:
            return parts[0]
        flat: list[syntax.Shorthand] = []
        for part in parts:
            flat += part.parts if isinstance(part, syntax.ShortAnd) else [part]
        return syntax.ShortAnd(tuple(flat))

    def _step(self) -> syntax.Shorthand:
        start = self._next.span.start
        if self._take("("):
            inner = self._shorthand()
            self._expect(")")
            return inner
        if self._is_word("not"):
            self._fail("unexpected `not`: a shorthand rule can't negate; write a rule", self._here)
        after = self._peek(1)
        if self._is_word("global") and after.kind in (Kind.STRING, Kind.NAME):
            self._advance()
            text, is_name = self._string_or_name("a role or permission")
            return syntax.Step(text, is_name, is_global=True, span=self._since(start))
        if self._next.kind is Kind.NAME and after.kind is Kind.MARK and after.text == "(":
            return self._call(self._name("a predicate"))
        text, is_name = self._string_or_name("a role, permission, relation or call")
        on = self._string() if self._take_word("on") else None
        return syntax.Step(text, is_name, on, span=self._since(start))

    # --- Tests

    def _test_or_fixture(self, start: int) -> syntax.Fixture | syntax.Test:
        self._advance()
        if self._take_word("fixture"):
            fixture = self._name("a fixture")
            self._expect("{")
            facts = []
            while not self._take("}"):
                facts.append(self._fact())
            return syntax.Fixture(fixture, tuple(facts), self._since(start))
        name = self._string()
        self._expect("{")
        setup: list[syntax.Call | syntax.UseFixture] = []
        if self._is_word("setup") and self._peek(1).text == "{":
            self._advance()
            self._advance()
            while not self._take("}"):
                begin = self._next.span.start
                if self._is_word("fixture") and self._peek(1).kind is Kind.NAME:
                    self._advance()
                    used = self._name("a fixture")
                    self._end("the fixture")
                    setup.append(syntax.UseFixture(used, self._since(begin)))
                else:
                    setup.append(self._fact())
        assertions = []
        while not self._is("}"):
            assertions.append(self._assertion())
        if not assertions:
            self._expected("`assert` or `assert_not`: a test has at least one assertion")
        self._expect("}")
        return syntax.Test(name, tuple(setup), tuple(assertions), self._since(start))

    def _fact(self) -> syntax.Call:
        fact = self._call(self._name("a fact"))
        for argument in fact.arguments:
            if not isinstance(argument, syntax.Value):
                self._fail("a fact's arguments are values", argument.span)
        self._end("the fact")
        return fact

    def _assertion(self) -> syntax.Assertion:
        start = self._next.span.start
        expected = self._is_word("assert")
        if not (self._take_word("assert") or self._take_word("assert_not")):
            self._expected("`assert` or `assert_not`")
        call = self._call(self._name("a predicate"), typed=True)
        iff = self.expression() if self._take_word("iff") else None
        self._end("the assertion")
        return syntax.Assertion(expected, call, iff, self._since(start))

    # --- Expressions

    def expression(self) -> syntax.Expression:
        start = self._next.span.start
        with _Nested(self):
            parts = [self._and()]
            while self._take_word("or"):
                parts.append(self._and())
        if len(parts) == 1:
            return parts[0]
        flat: list[syntax.Expression] = []
        for part in parts:
            flat += part.parts if isinstance(part, syntax.Or) else [part]
        return syntax.Or(tuple(flat), self._since(start))

    def _and(self) -> syntax.Expression:
        start = self._next.span.start
        parts = [self._not()]
        while self._take_word("and"):
            parts.append(self._not())
        if len(parts) == 1:
            return parts[0]
        flat: list[syntax.Expression] = []
        for part in parts:
            flat += part.parts if isinstance(part, syntax.And) else [part]
        return syntax.And(tuple(flat), self._since(start))

    def _not(self) -> syntax.Expression:
        start = self._next.span.start
        if not self._take_word("not"):
            return self._condition()
        with _Nested(self):
            part = self._not()
        return syntax.Not(part, self._since(start))

    def _condition(self) -> syntax.Expression:
        start = self._next.span.start
        if self._take("("):
            inner = self.expression()
            self._expect(")")
            return inner
        after = self._peek(1)
        if (
            self._next.kind is Kind.NAME
            and self._next.text not in RESERVED
            and after.kind is Kind.MARK
            and after.text == "("
        ):
            return self._call(self._name("a predicate"))
        left = self._term()
        if self._next.kind is Kind.MARK and self._next.text in COMPARISONS:
            operator = self._advance().text
            right = self._term()
            return syntax.Compare(operator, left, right, self._since(start))
        if self._take_word("in"):
            begin = self._next.span.start
            items = self._listed("[", "]", self._term)
            listed = syntax.Items(items, self._since(begin))
            return syntax.In(left, listed, self._since(start))
        if self._take_word("matches"):
            exact = self._take("!")
            kind = self._name("a type")
            return syntax.Matches(left, kind, exact, self._since(start))
        if not isinstance(left, syntax.Value) or left.type != "Boolean":
            self._expected("a comparison, `in`, `matches` or `(`")
        return syntax.Truth(left.id == "true", left.span)

    def _call(self, name: syntax.Name, *, typed: bool = False) -> syntax.Call:
        argument = self._typed_term if typed else self._term
        arguments = self._listed("(", ")", argument, parameters=True)
        return syntax.Call(name, arguments, self._since(name.span.start))

    def _typed_term(self) -> syntax.Term:
        term = self._term()
        if isinstance(term, syntax.Variable) and self._take(":"):
            kind = self._name("a type")
            return syntax.Variable(term.name, kind, self._since(term.span.start))
        return term

    def _term(self) -> syntax.Term:
        token = self._next
        if self._is("["):
            with _Nested(self):
                items = self._listed("[", "]", self._term)
            return syntax.Items(items, self._since(token.span.start))
        if token.kind is Kind.STRING:
            self._advance()
            return syntax.Value("String", token.text, token.span)
        if token.kind is Kind.INTEGER:
            self._advance()
            return syntax.Value("Integer", token.text, token.span)
        if token.kind is Kind.FLAG and token.text == "@current_unix_time":
            self._advance()
            return syntax.Now(token.span)
        if token.kind is not Kind.NAME or token.text in RESERVED - {"true", "false"}:
            self._expected("a variable or a literal")
        self._advance()
        if token.text in ("true", "false"):
            return syntax.Value("Boolean", token.text, token.span)
        if self._is("{"):
            return self._object(token)
        return syntax.Variable(token.text, None, token.span)

    def _object(self, kind: Token) -> syntax.Value:
        self._expect("{")
        token = self._advance()
        is_boolean = token.kind is Kind.NAME and token.text in ("true", "false")
        if token.kind not in (Kind.STRING, Kind.INTEGER) and not is_boolean:
            self._index -= 1
            self._expected('an id, such as "alice"')
        self._expect("}")
        span = self._since(kind.span.start)
        given = {Kind.STRING: "String", Kind.INTEGER: "Integer"}.get(token.kind, "Boolean")
        if kind.text in PRIMITIVES and kind.text != given:
            self._fail(f"{kind.text} has a value of its own kind, not {token.shown}", span)
        return syntax.Value(kind.text, token.text, span)

    # --- Tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    @property
    def _here(self) -> Span:
        return self._next.span

    def _peek(self, ahead: int) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._next
        if token.kind is not Kind.END:
            self._index += 1
        return token

    def _since(self, start: int) -> Span:
        return Span(start, self._tokens[max(0, self._index - 1)].span.end)

    def _is(self, mark: str) -> bool:
        return self._next.kind is Kind.MARK and self._next.text == mark

    def _take(self, mark: str) -> bool:
        found = self._is(mark)
        if found:
            self._advance()
        return found

    def _is_word(self, word: str) -> bool:
        return self._next.kind is Kind.NAME and self._next.text == word

    def _take_word(self, word: str) -> bool:
        found = self._is_word(word)
        if found:
            self._advance()
        return found

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._expected(f"`{mark}`")

    def _end(self, what: str) -> None:
        if not self._take(";"):
            self._expected(f"`;` after {what}")

    def _name(self, what: str) -> syntax.Name:
        token = self._next
        if token.kind is not Kind.NAME or token.text in RESERVED or token.text == "_":
            self._expected(what)
        self._advance()
        return syntax.Name(token.text, token.span)

    def _string(self) -> syntax.Name:
        if self._next.kind is not Kind.STRING:
            self._expected("a string")
        token = self._advance()
        return syntax.Name(token.text, token.span)

    def _string_or_name(self, what: str) -> tuple[syntax.Name, bool]:
        if self._next.kind is Kind.STRING:
            return self._string(), False
        return self._name(what), True

    def _listed(
        self, begin: str, end: str, item: Callable[[], T], *, parameters: bool = False
    ) -> tuple[T, ...]:
        start = self._next.span.start
        self._expect(begin)
        items: list[T] = []
        while not self._is(end):
            items.append(item())
            if not self._take(",") and not self._is(end):
                self._expected(f"`,` or `{end}`")
        self._advance()
        if parameters and len(items) > PARAMETERS_MAX:
            self._fail(
                f"{len(items)} parameters: there may be at most {PARAMETERS_MAX}",
                self._since(start),
            )
        return tuple(items)

    def enter(self) -> None:
        """Go one level deeper."""
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(f"nested deeper than {NESTING_MAX} levels", self._here)

    def leave(self) -> None:
        """Come back one level."""
        self._depth -= 1

    def _expected(self, what: str) -> NoReturn:
        self._fail(f"expected {what}, found {self._next.shown}", self._here)

    def _fail(self, message: str, span: Span) -> NoReturn:
        raise PolicyError(self._source, [Diagnostic(message, span)], is_syntax=True)


class _Nested:
    """Counts one level of nesting, so that a hostile policy can't exhaust Python's stack."""

    def __init__(self, parser: _Parser) -> None:
        self._parser = parser

    def __enter__(self) -> None:
        self._parser.enter()

    def __exit__(self, *_: object) -> None:
        self._parser.leave()
