"""Kafka's ssl.principal.mapping.rules: from a distinguished name to a user's name. Pure.

The first rule whose pattern matches the whole name is taken; `$1` in its replacement is the
pattern's first group. Patterns are Python's, which differ from Java's in rare constructs alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import InvalidRequestError

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|"
    r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*"
)
_SETTING: Final = "ssl_principal_mapping_rules"
_REFERENCE: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `pattern` None: the name stays as it is (DEFAULT)."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the user's name; None: the rule doesn't match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = _REFERENCE.sub(lambda reference: found[int(reference[1])] or "", self.replacement)
        return (
            mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped
        )


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Read the setting.

    Raises:
        InvalidRequestError: the text isn't a list of rules.
    """
    rules: list[Rule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise _refused(f"{text[position : position + 60]!r} is not RULE:PATTERN/REPLACEMENT/")
        rules.append(Rule() if found["default"] else _rule(found))
        position = found.end()
        if position < len(text):
            if text[position] != ",":
                raise _refused(f"{text[position : position + 60]!r} follows a rule, not a comma")
            position += 1
    return tuple(rules) or (Rule(),)


def map_name(rules: Sequence[Rule], distinguished_name: str) -> str | None:
    """Return the user's name by the first rule that matches; None: none does."""
    for rule in rules:
        user = rule.apply(distinguished_name)
        if user is not None:
            return user
    return None


def _rule(found: re.Match[str]) -> Rule:
    try:
        pattern = re.compile(found["pattern"])
    except re.error as error:
        raise _refused(f"{found['pattern']!r} is not a pattern: {error}") from error
    for reference in _REFERENCE.findall(found["replacement"]):
        if int(reference) > pattern.groups:
            raise _refused(
                f"${reference} of {found['pattern']!r}, which has {pattern.groups} groups"
            )
    return Rule(pattern, found["replacement"], found["case"])


def _refused(detail: str) -> InvalidRequestError:
    return InvalidRequestError("read setting", _SETTING, detail)
