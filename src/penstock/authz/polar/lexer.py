"""Tokens of a policy: docs/authz-polar.md, "Lexis"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from penstock.authz.polar.errors import Diagnostic, PolicyError, Span

SOURCE_BYTES_MAX: Final = 1 << 20
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1

_PUNCTUATION = r"!-/:-@\[-^`{-~"
_FIRST = rf"[^\s\d\x00-\x1f\x7f{_PUNCTUATION}]"
_SEGMENT = rf"{_FIRST}[^\s\x00-\x1f\x7f{_PUNCTUATION}]*"
_TOKEN = re.compile(
    rf"""
      (?P<blank> [\s]+ | \#[^\n]* )
    | (?P<string> "(?: [^"\\\n]++ | \\. )*+" )
    | (?P<number> [+-]?[0-9]+ (?: \.[0-9]+ )? (?: [eE][+-]?[0-9]+ )? )
    | (?P<name> {_SEGMENT} (?: ::{_SEGMENT} )* \?? )
    | (?P<flag> @{_SEGMENT} )
    | (?P<mark> \?= | != | <= | >= | [()\[\]{{}},;:=<>!] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class Kind(Enum):
    """The kinds of tokens."""

    STRING = "string"
    INTEGER = "integer"
    NAME = "name"
    FLAG = "flag"
    MARK = "mark"
    END = "end"


class Token(NamedTuple):
    """One token.

    Args:
        text: a string's characters without quotes and escapes; else the token as written.
    """

    kind: Kind
    text: str
    span: Span

    @property
    def shown(self) -> str:
        """The token as messages quote it, shortened."""
        if self.kind is Kind.END:
            return "the end of the policy"
        text = self.text if len(self.text) <= 40 else f"{self.text[:40]}..."
        return f'string "{text}"' if self.kind is Kind.STRING else f"`{text}`"


def tokenize(source: str) -> list[Token]:
    """Read all tokens; the last one is END.

    Raises:
        PolicyError: a token isn't one, or the source is longer than SOURCE_BYTES_MAX.
    """
    # Characters first: encoding a huge source to count its bytes would cost its size again.
    if len(source) > SOURCE_BYTES_MAX or _utf8_bytes(source) > SOURCE_BYTES_MAX:
        raise _error(source, f"the policy is longer than {SOURCE_BYTES_MAX:,} bytes", 0, 0)
    return list(_tokens(source))


def comments(source: str) -> list[Span]:
    """Find the comments of a source whose tokens can be read."""
    return [
        Span(match.start(), match.end())
        for match in _TOKEN.finditer(source)
        if match.group().startswith("#")
    ]


def unescape(body: str) -> str:
    """Give the characters that a string's body stands for."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), body, flags=re.DOTALL)


def escape(text: str) -> str:
    """Write characters as the body of a string; `unescape` undoes it."""
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return body.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _utf8_bytes(source: str) -> int:
    return len(source.encode("utf-8", "surrogatepass"))


def _tokens(source: str) -> Iterator[Token]:
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise _unreadable(source, position)
        span = Span(position, match.end())
        position = match.end()
        text = match.group()
        match match.lastgroup:
            case "string":
                yield Token(Kind.STRING, unescape(text[1:-1]), span)
            case "number":
                yield Token(Kind.INTEGER, _integer(source, text, span), span)
            case "name":
                yield Token(Kind.NAME, text, span)
            case "flag":
                yield Token(Kind.FLAG, text, span)
            case "mark":
                yield Token(Kind.MARK, text, span)
            case _:
                pass
    yield Token(Kind.END, "", Span(position, position))


def _integer(source: str, text: str, span: Span) -> str:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise _error(source, "a number has to be an Integer", span.start, span.end)
    # Python refuses to convert thousands of digits; 20 characters hold every number in range.
    digits = text.lstrip("+-0") or "0"
    value = int(f"-{digits}" if text[0] == "-" else digits) if len(digits) < 20 else INTEGER_MAX + 1
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise _error(source, "an Integer has 64 bits: -2^63 to 2^63-1", span.start, span.end)
    return str(value)


def _unreadable(source: str, position: int) -> PolicyError:
    if source[position] == '"':
        line_end = source.find("\n", position)
        end = len(source) if line_end < 0 else line_end
        return _error(source, "unterminated string: it has to end on its line", position, end)
    return _error(source, f"unexpected character {source[position]!r}", position, position + 1)


def _error(source: str, message: str, start: int, end: int) -> PolicyError:
    diagnostic = Diagnostic(message, Span(start, end))
    return PolicyError(source[: SOURCE_BYTES_MAX + 1], [diagnostic], is_syntax=True)
