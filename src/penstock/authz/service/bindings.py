"""Data bindings: the part of YAML that they are written in, and what they say. Pure.

```
facts:
  has_relation(Repository:_, String:parent, Organization:_):
    query: SELECT id, org_id FROM repository
sql_types:
  Repository: integer
dialect: postgresql
```

Mappings by indentation, texts in one line, quoted, or as blocks (`|` and `>`). Anchors, tags, and
flow collections are refused: a text of a stranger's must not grow when it is read.
"""

import re
from typing import Final

import msgspec

from penstock.authz.polar.local import Binding, Bindings
from penstock.authz.polar.local_sql import DIALECTS, POSTGRESQL, is_type
from penstock.model.errors import InvalidRequestError

BYTES_MAX: Final = 1 << 20
BINDINGS_MAX: Final = 1_000
_KEY: Final = re.compile(
    r"""(?P<indent> *)(?P<key>"[^"]*"|'[^']*'|[^\s#"'][^#]*?):(?:\s+(?P<rest>.*))?"""
)
_FACT: Final = re.compile(r"\s*([^\s(),:]+)\s*\(\s*(.*?)\s*\)\s*")
_ARGUMENT: Final = re.compile(r"(?:([^\s,:]+(?:::[^\s,:]+)*)\s*:\s*)?([^\s,:]+)")


def read_bindings(text: str | None) -> Bindings:
    """Read data bindings; None: nothing is bound.

    Raises:
        InvalidRequestError: they aren't valid; the message names the line.
    """
    if not text:
        return Bindings(POSTGRESQL)
    if len(text) > BYTES_MAX:
        raise _invalid(f"{len(text):,} characters; {BYTES_MAX:,} are allowed")
    found = _Reader(text).mapping(0)
    unknown = sorted(found.keys() - {"facts", "sql_types", "dialect"})
    if unknown:
        raise _invalid(f"{unknown[0][:50]!r} isn't known: facts, sql_types and dialect are")
    dialect = found.get("dialect", "postgresql")
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        raise _invalid(f"dialect isn't one of {', '.join(DIALECTS)}")
    types = {}
    for name, kind in _mapping(found, "sql_types").items():
        if not isinstance(kind, str) or not is_type(kind):
            raise _invalid(f"the SQL type of {name[:50]} isn't the name of a type")
        types[name] = kind
    facts = _mapping(found, "facts")
    if len(facts) > BINDINGS_MAX:
        raise _invalid(f"{len(facts):,} facts; {BINDINGS_MAX:,} are allowed")
    return Bindings(
        DIALECTS[dialect], tuple(_binding(key, each) for key, each in facts.items()), types
    )


def _mapping(found: "dict[str, object]", name: str) -> "dict[str, object]":
    part = found.get(name, {})
    if part == "":
        return {}
    if not isinstance(part, dict):
        raise _invalid(f"{name} isn't a mapping")
    return part


def _binding(key: str, found: object) -> Binding:
    match = _FACT.fullmatch(key)
    if match is None:
        raise _invalid(f"{key[:100]!r} isn't a fact: NAME(TYPE:_, TYPE:ID, ...)")
    query = found.get("query") if isinstance(found, dict) else None
    if not isinstance(query, str) or not query.strip() or "\0" in query:
        raise _invalid(f"{key[:100]} has no query")
    types, constants = [], []
    for part in match[2].split(",") if match[2] else []:
        argument = _ARGUMENT.fullmatch(part.strip())
        if argument is None:
            raise _invalid(f"{part.strip()[:50]!r} of {key[:100]} isn't TYPE:_ or TYPE:ID")
        kind, value = argument[1], argument[2]
        if kind is None and value == "_":
            raise _invalid(f"an argument of {key[:100]} has no type")
        # A bare word is the name of a role, a permission or a relation.
        types.append(kind or "String")
        constants.append(None if value == "_" else value)
    return Binding(match[1], tuple(types), tuple(constants), query.strip().rstrip(";").rstrip())


class _Reader:
    """Reads the lines of a text."""

    def __init__(self, text: str) -> None:
        self._lines = text.expandtabs(8).splitlines()
        self._at = 0

    def mapping(self, indent: int) -> "dict[str, object]":
        """Read the keys that are indented like this."""
        found: dict[str, object] = {}
        while self._skip():
            line = self._lines[self._at]
            depth = len(line) - len(line.lstrip())
            if depth < indent:
                break
            match = _KEY.fullmatch(line.rstrip())
            if match is None or depth > indent or line.lstrip()[0] in "-[]{}&*!%@`|>?":
                raise self._error("a key and a colon are due")
            key = _unquoted(match["key"].strip())
            if key in found:
                raise self._error(f"{key[:50]!r} is there twice")
            self._at += 1
            found[key] = self._value(indent, (match["rest"] or "").strip())
        return found

    def _value(self, indent: int, rest: str) -> object:
        if rest[:1] in ("|", ">") and re.fullmatch(r"[|>][-+]?(\s+#.*)?", rest):
            lines = self._block(indent)
            return "\n".join(lines) if rest[0] == "|" else " ".join(lines)
        if rest and not rest.startswith("#"):
            if rest[0] in "[{&*!%@`":
                self._at -= 1
                raise self._error("flow collections, anchors and tags aren't read here")
            if rest[0] in "\"'":
                return self._quoted(rest)
            # A plain text may go on in lines that are indented further.
            return " ".join([_uncommented(rest), *map(_uncommented, self._block(indent))]).strip()
        if not self._skip():
            return ""
        line = self._lines[self._at]
        depth = len(line) - len(line.lstrip())
        return self.mapping(depth) if depth > indent else ""

    def _quoted(self, rest: str) -> str:
        text = rest
        while not re.fullmatch(r"""("(\\.|[^"\\])*"|'(''|[^'])*')\s*(#.*)?""", text):
            if self._at >= len(self._lines):
                raise self._error("a quote isn't closed")
            text += f" {self._lines[self._at].strip()}"
            self._at += 1
        match = re.match(r"""("(\\.|[^"\\])*"|'(''|[^'])*')""", text)
        assert match is not None
        return _unquoted(match[0])

    def _block(self, indent: int) -> list[str]:
        found = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            found.append(line.strip())
            self._at += 1
        return found

    def _skip(self) -> bool:
        """Pass over lines that say nothing; whether one is left."""
        while self._at < len(self._lines):
            line = self._lines[self._at].strip()
            if line and not line.startswith("#") and line != "---":
                return True
            self._at += 1
        return False

    def _error(self, detail: str) -> InvalidRequestError:
        return _invalid(f"line {self._at + 1}: {detail}")


def _uncommented(text: str) -> str:
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


def _unquoted(text: str) -> str:
    if text[:1] == "'":
        return text[1:-1].replace("''", "'")
    if text[:1] == '"':
        try:
            return msgspec.json.decode(text.encode("utf-8", "replace"), type=str)
        except msgspec.DecodeError as error:
            raise _invalid(f"{text[:50]} isn't a text: {error}") from error
    return text


def _invalid(detail: str) -> InvalidRequestError:
    return InvalidRequestError("read", "data bindings", f"data bindings: {detail}")
