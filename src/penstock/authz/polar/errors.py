"""Say where a policy is wrong, to a person and to an editor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.errors import InvalidRequestError

SHOWN_COLUMNS_MAX: Final = 200
"""A line of the policy is shown up to so many characters, so that no message is huge."""


class Span(NamedTuple):
    """A half-open range of characters of the source."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong with a policy.

    Args:
        message: what is wrong, and what to do.
        span: where.
    """

    message: str
    span: Span

    def line_and_column(self, source: str) -> tuple[int, int]:
        """Give line and column, both from 1, in characters."""
        return _place(source, self.span.start)

    def render(self, source: str, filename: str = "") -> str:
        """Give the message with the line it is about, and a caret beneath."""
        line, column = self.line_and_column(source)
        begin = source.rfind("\n", 0, self.span.start) + 1
        text = source[begin:].partition("\n")[0]
        start = self.span.start - begin
        shift = max(0, start - SHOWN_COLUMNS_MAX // 2)
        shown = text[shift : shift + SHOWN_COLUMNS_MAX].rstrip("\r")
        length = max(1, min(self.span.end, begin + len(text)) - self.span.start)
        # Tabs stay tabs, so that the caret stands under its character.
        lead = "".join("\t" if each == "\t" else " " for each in shown[: start - shift])
        marks = "^" * min(length, max(1, len(shown) - len(lead)))
        margin = " " * len(str(line))
        place = f"{filename}:{line}:{column}" if filename else f"{line}:{column}"
        return f"{place}: {self.message}\n{margin} |\n{line} | {shown}\n{margin} | {lead}{marks}"

    def as_json(self, source: str) -> dict[str, object]:
        """Give what an editor needs: message, and the range by lines and columns from 1."""
        line, column = self.line_and_column(source)
        end_line, end_column = _place(source, max(self.span.start, self.span.end))
        return {
            "severity": "error",
            "message": self.message,
            "start": {"line": line, "column": column, "offset": self.span.start},
            "end": {"line": end_line, "column": end_column, "offset": self.span.end},
        }


class PolicyError(InvalidRequestError):
    """A policy is refused. `diagnostics` says why, in the order of the source.

    Args:
        is_syntax: it isn't Polar; else it is, and its checks failed.
    """

    def __init__(
        self, source: str, diagnostics: Sequence[Diagnostic], *, is_syntax: bool = False
    ) -> None:
        self.source = source
        self.is_syntax = is_syntax
        self.diagnostics = tuple(sorted(diagnostics, key=lambda each: each.span.start))
        text = "\n".join(each.render(source) for each in self.diagnostics)
        super().__init__("read", "policy", text)

    @property
    def message(self) -> str:
        """All messages with their lines and carets."""
        return self.detail

    def as_json(self) -> dict[str, object]:
        """Give the error as the API does (docs/authz-polar.md, "Errors")."""
        if self.is_syntax:
            return {"error_type": "Generic", "message": self.message}
        errors = [
            {"error_type": "ValidationFailed", "message": each.render(self.source)}
            for each in self.diagnostics
        ]
        return {"error_type": "Validation", "message": self.message, "errors": errors}


def _place(source: str, offset: int) -> tuple[int, int]:
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)
