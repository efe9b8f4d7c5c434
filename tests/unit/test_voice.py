"""Docstrings, comments and texts keep the rules of prose that a machine can check.

A docstring begins with a sentence that has a verb. Docstrings, comments and texts name the role
that acts, and leave out words that made sentences hard to follow. Pages in docs/ keep the rules
about words, too. To see what a folder breaks:

    python tests/unit/test_voice.py FOLDER
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "penstock"

FIRST_WORDS = frozenset(
    ["As", "Behind", "By", "Of", "That", "Those", "What", "Which", "Who", "Whose"]
)
"""No docstring begins with these: what follows them is a fragment."""

FIRST_WORDS_OF_FUNCTIONS = FIRST_WORDS | frozenset(["How", "When", "Where", "Why"])
"""A constant's docstring may still say "How long ...": it names a quantity."""

FRAGMENTS = re.compile(
    r"(Per|For how (long|many|much)|Since when|Up to|At (least|most)|About how)\b"
)
"""No docstring of a module, class or function begins so: what follows has no verb of its own."""

WORDS = re.compile(
    r"""\b( nobody | somebody | whoever | anew | befell | till | told | beside | so\s+long
    | tells?\s+of | save\s+for | g[ai]ves?\s+way
    | (is|are|was|were) \s+ no \s+ (?!longer|more|less|later|earlier|fewer
      |older|newer|better)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def _is_bool(node: ast.AST | None) -> bool:
    """Whether an annotation or a value is a bool, alone or as one of several types."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    return node is not None and re.search(r"\bbool\b|Array|NDArray", ast.unparse(node)) is not None


def _docstrings(tree: ast.AST) -> Iterator[tuple[ast.Constant, ast.AST]]:
    """Yield each docstring and what it describes: a module, class, function or assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for described, statement in zip([node, *body], body, strict=False):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.value, described


def _begins_badly(text: str, described: ast.AST) -> bool:
    word = (text.split() or [""])[0].rstrip(".,:;")
    if word == "Whether":
        if isinstance(described, ast.FunctionDef | ast.AsyncFunctionDef):
            return not _is_bool(described.returns)
        if isinstance(described, ast.AnnAssign):
            return not _is_bool(described.annotation)
        value = described.value if isinstance(described, ast.Assign) else None
        return value is None or (isinstance(value, ast.Constant) and not _is_bool(value))
    is_assignment = isinstance(described, ast.Assign | ast.AnnAssign)
    if text.strip().startswith("There is no such"):
        return True  # name what is missing
    if not is_assignment and FRAGMENTS.match(text.strip()):
        return True
    return word in (FIRST_WORDS if is_assignment else FIRST_WORDS_OF_FUNCTIONS)


def findings(path: Path) -> Iterator[str]:
    """Yield what a module's prose breaks, each as `path:line: what: text`."""
    source = path.read_text("utf-8")
    for docstring, described in _docstrings(ast.parse(source)):
        if _begins_badly(docstring.value, described):
            first_line = docstring.value.strip().partition("\n")[0]
            yield f"{path}:{docstring.lineno}: begins as a fragment: {first_line}"
    if not WORDS.search(source):  # taking it apart is what costs
        return
    prose = [tokenize.COMMENT, tokenize.STRING]
    prose += [getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in prose:
            continue
        for match in WORDS.finditer(token.string):
            if match[2] and re.search(r"\bthere\s+$", token.string[: match.start()], re.IGNORECASE):
                continue
            line = token.start[0] + token.string.count("\n", 0, match.start())
            text = source.splitlines()[line - 1].strip()
            yield f'{path}:{line}: "{match.group()}": {text}'


def _findings_of(folder: str) -> list[str]:
    paths = sorted((SOURCE / folder).glob("*.py"))
    return [finding for path in paths for finding in findings(path)]


FOLDERS = sorted({str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_prose_keeps_the_rules(folder: str) -> None:
    found = _findings_of(folder)
    assert not found, "\n".join(found)


PROSE = sorted(
    page
    for folder in (REPOSITORY, REPOSITORY / "docs", REPOSITORY / "docs" / "formats")
    for page in folder.glob("*.md")
    if page.name != "CHANGELOG.md"
)
"""Pages that readers follow. Decisions are left out, since they record what was said at the time,
and the changelog, whose lines name releases as they were."""


def _page_findings(page: Path) -> Iterator[str]:
    in_code = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            continue
        if in_code:
            continue
        # A name in backquotes keeps its spelling.
        text = re.sub(r"`[^`]*`", "``", line)
        for match in WORDS.finditer(text):
            if match[2] and re.search(r"\bthere\s+$", text[: match.start()], re.IGNORECASE):
                continue
            yield f'{page.name}:{number}: "{match.group()}": {line[:150]}'


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_pages_keep_the_rules(page: Path) -> None:
    found = list(_page_findings(page))
    assert not found, "\n".join(found)


def test_superseded_decisions_say_so_first() -> None:
    """A decision that another one replaces, whole or in part, begins with it."""
    for page in sorted((REPOSITORY / "docs" / "decisions").glob("0*.md")):
        lines = [line for line in page.read_text("utf-8").splitlines()[1:] if line.strip()]
        named = [line for line in lines if "superseded by" in line.lower()]
        if named:
            assert lines[0].startswith("**Superseded by ["), f"{page.name}: {named[0]}"


if __name__ == "__main__":
    for folder in sys.argv[1:] or FOLDERS:
        print(*_findings_of(folder), sep="\n")
